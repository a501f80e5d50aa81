"""Scores of a model with two stacks: each block is judged by what it does where it stands."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from architectures.pruning.importance import activation_scores, removal_order
from architectures.vocabulary_head import read_text
from eval.models import load_model

IDS = torch.arange(3, 35).reshape(2, 16)


@pytest.fixture
def model(make_translator):
    return load_model(make_translator(tied=False), dtype="float32", device="cpu")


def silence(block) -> None:
    """Take away all that a block adds to the stream."""
    for name, parameter in block.named_parameters():
        if name.endswith((".o.weight", ".wo.weight")):
            parameter.data.zero_()


def test_text_is_read_half_by_each_stack(model):
    with torch.inference_mode():
        expected = model(input_ids=IDS[:, :8], labels=IDS[:, 8:].contiguous()).logits
        assert torch.equal(model.lm_head(read_text(model, IDS))[:, :8], expected)


def test_a_block_that_does_nothing_turns_nothing(model):
    silence(model.decoder.block[2])
    scores = activation_scores(model, IDS)
    assert [index for index, score in enumerate(scores["block_influence_L"]) if abs(score) < 1e-9] == [2]


def test_the_influence_of_a_block_is_the_turn_of_its_own_stream(model):
    streams: list[torch.Tensor] = []
    for module in (*model.decoder.block, model.decoder.final_layer_norm):
        module.register_forward_pre_hook(lambda _, args: streams.append(args[0].double()))
    found = activation_scores(model, IDS)["block_influence_L"]
    texts = streams[:5], streams[5:]
    turns = [[1 - F.cosine_similarity(*pair, dim=-1) for pair in pairwise(stream)] for stream in texts]
    expected = [torch.stack([turns[0][block], turns[1][block]]).mean().item() for block in range(4)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_block_without_which_nothing_changes_goes_first(model):
    silence(model.decoder.block[3])
    assert removal_order(model, IDS)[0] == 3


def test_the_first_block_may_go_and_the_distances_stay(model):
    """A block is tried with the biases it was given, which are those of the first block's table."""
    silence(model.decoder.block[0])
    assert removal_order(model, IDS)[0] == 0
