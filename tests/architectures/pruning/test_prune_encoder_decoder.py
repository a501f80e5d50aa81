"""Encoder-decoder models through prune, save, load, compare: blocks of both stacks go, and nothing else changes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from architectures.pruning.plan import PruningPlan, needed_scores, wrong_field
from architectures.pruning.prune import prune_checkpoint
from architectures.requested_shape import ArchitectureConfig
from tests.architectures.cuts import edit_weights, load, plan_for, pruned, require_same_tensors, shape_of
from tests.rejections import rejects

KINDS = [(tied, gated) for tied in (True, False) for gated in (True, False)]
READ, SAID = torch.arange(3, 35)[None], torch.tensor([[0, 7, 9, 11, 9, 200]])


@pytest.fixture(scope="module", params=KINDS, ids=str)
def target(request, make_translator) -> Path:
    tied, gated = request.param
    return make_translator(tied=tied, gated=gated)


def logits(model: PreTrainedModel) -> Tensor:
    with torch.inference_mode():
        return model.eval()(input_ids=READ, decoder_input_ids=SAID, use_cache=False).logits


def cut_by_hand(folder: Path, plan: PruningPlan) -> PreTrainedModel:
    """The target without the other blocks; the first ones left get the tables that the first ones had."""
    model = load(folder)
    for stack, kept in ((model.decoder, plan.source_layers), (model.encoder, plan.encoder_layers)):
        table = stack.block[0].layer[0].SelfAttention.relative_attention_bias
        stack.block = torch.nn.ModuleList(stack.block[block] for block in kept)
        attention = stack.block[0].layer[0].SelfAttention
        attention.relative_attention_bias, attention.has_relative_attention_bias = table, True
    return model


def test_keeping_everything_keeps_every_bit(target, tmp_path):
    draft = pruned(target, plan_for(target, layers=4), tmp_path / "draft")

    assert torch.equal(logits(draft), logits(load(target)))
    require_same_tensors(tmp_path / "draft", target)


@pytest.mark.parametrize(
    ("kept", "encoder"), [((0,), (0, 1, 2)), ((0, 3), (0, 2)), ((2, 3), (1,)), ((1, 2, 3), (2,)), ((3,), (0, 1, 2))]
)
def test_a_draft_computes_what_the_target_computes_without_the_other_blocks(target, tmp_path, kept, encoder):
    plan = plan_for(target, layers=len(kept), encoder_layers=len(encoder))
    plan = replace(plan, source_layers=kept, encoder_layers=encoder)
    draft = pruned(target, plan, tmp_path / "draft")

    assert torch.equal(logits(draft), logits(cut_by_hand(target, plan)))


def test_a_head_of_its_own_stays_one_and_a_tied_one_is_not_stored_twice(make_translator, tmp_path):
    for tied in (True, False):
        folder = make_translator(tied=tied)
        draft = pruned(folder, plan_for(folder, layers=1), tmp_path / str(tied))
        assert (draft.lm_head.weight is draft.shared.weight) == tied
        assert draft.config.scale_decoder_outputs == tied
        assert ("lm_head.weight" in load_file(tmp_path / str(tied) / "model.safetensors")) == (not tied)


@pytest.mark.parametrize("name", ["lm_head.weight", "encoder.embed_tokens.weight"])
def test_a_stored_copy_of_the_embedding_must_be_one(make_translator, tmp_path, name):
    folder = make_translator()
    edit_weights(folder, lambda tensors: tensors.update({name: tensors["shared.weight"].clone()}))
    pruned(folder, plan_for(folder, layers=1), tmp_path / "draft")

    edit_weights(folder, lambda tensors: tensors[name].add_(1))
    with rejects(name, "shared.weight"):
        prune_checkpoint(folder, plan_for(folder, layers=1), tmp_path / "other")


def test_blocks_of_the_encoder_are_evenly_spaced(target):
    wanted = {"layers": 2, "encoder_layers": 2}
    assert plan_for(target, **wanted).encoder_layers == (0, 2)
    assert needed_scores(shape_of(target), ArchitectureConfig(method="first_last", **wanted)) == set()


def test_a_plan_from_a_file_is_held_to_the_encoder_that_is_there(target):
    plan = plan_for(target, layers=1, encoder_layers=2)
    assert PruningPlan.from_json(plan.to_json()) == plan
    assert wrong_field(plan) is None
    assert wrong_field(replace(plan, encoder_layers=(0, 3))) == "encoder_layers"
    assert wrong_field(replace(plan, encoder_layers=())) == "encoder_layers"


def test_a_target_without_an_encoder_has_no_blocks_of_one_to_keep(tiny_target):
    with rejects("architecture.encoder_layers=1", "llama"):
        plan_for(tiny_target, layers=1, encoder_layers=1)


def test_transformers_drafts_with_it(make_translator, tmp_path):
    """With an encoder as deep as the decoder: transformers' own cache has as many layers as the encoder."""
    folder = make_translator(tied=False, num_layers=4)
    draft = pruned(folder, plan_for(folder, layers=2, encoder_layers=2), tmp_path / "draft")
    target, how = load(folder), {"max_new_tokens": 9, "do_sample": False}
    with torch.inference_mode():
        assert torch.equal(target.generate(READ, assistant_model=draft, **how), target.generate(READ, **how))
