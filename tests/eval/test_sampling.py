"""From logits to a distribution as transformers' generate does it, for every combination of settings."""

import itertools

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from eval.sampling import Sampling, distribution, penalised

VOCAB = 12
IDS_NT = torch.tensor([[3, 5, 5], [0, 1, 2], [11, 11, 11]])


@pytest.fixture
def logits():
    return 3 * torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(2))


def seen():
    return torch.zeros(3, VOCAB, dtype=torch.bool).scatter(1, IDS_NT, True)


@pytest.mark.parametrize(
    ("penalty", "temperature", "top_k", "top_p", "min_p"),
    [*itertools.product((1.0, 1.3, 0.8), (0.5, 1.7), (None, 1, 4), (1.0, 0.6), (0.0, 0.2))],
)
def test_every_setting_does_what_generate_does(logits, penalty, temperature, top_k, top_p, min_p):
    steps = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(penalty), TemperatureLogitsWarper(temperature)])
    steps += [TopKLogitsWarper(top_k)] if top_k else []
    steps += [TopPLogitsWarper(top_p), MinPLogitsWarper(min_p)]
    expected = steps(IDS_NT, logits.clone()).softmax(dim=-1)
    sampling = Sampling(temperature, top_p, top_k, min_p, penalty)
    torch.testing.assert_close(distribution(logits, sampling, seen()), expected)


def test_at_temperature_zero_all_mass_is_on_the_argmax_after_the_penalty(logits):
    plain = distribution(logits, Sampling(0.0))
    assert plain.argmax(dim=-1).equal(logits.argmax(dim=-1))
    assert plain.sum(dim=-1).tolist() == plain.max(dim=-1).values.tolist() == [1, 1, 1]
    heavy = Sampling(0.0, repetition_penalty=1e6)
    everything_seen = torch.zeros(3, VOCAB, dtype=torch.bool).scatter(1, logits.argmax(dim=-1)[:, None], True)
    assert (distribution(logits, heavy, everything_seen).argmax(dim=-1) != logits.argmax(dim=-1)).all()


def test_half_precision_logits_become_float32(logits):
    half = logits.bfloat16()
    for sampling in (Sampling(0.7, top_p=0.9), Sampling(0.0)):
        assert distribution(half, sampling).dtype == torch.float32
        assert distribution(half, sampling).equal(distribution(half.float(), sampling))


def test_a_penalty_needs_the_text(logits):
    with pytest.raises(AssertionError, match="needs the tokens seen"):
        penalised(logits, Sampling(repetition_penalty=1.1), None)
