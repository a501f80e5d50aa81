"""From logits to a distribution as transformers' generate does it, for every combination of settings, and to tokens."""

import itertools
from collections import Counter

import pytest
import torch
from scipy.stats import chisquare
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from eval.decoding.sampling import Sampling, distribution, invert_cumulative, penalised, uniform_draws
from tests.rejections import rejects

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
    with rejects(error=AssertionError):
        penalised(logits, Sampling(repetition_penalty=1.1), None)


def drawn(logits_NV, draws_N, sampling):
    """One token a row of logits."""
    return invert_cumulative(distribution(logits_NV, sampling), draws_N)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 1.0), (2.0, 1.0), (1.0, 0.8), (0.7, 0.5)])
def test_sampled_frequencies_match_the_probabilities(temperature, top_p):
    torch.manual_seed(0)
    logits_V = torch.randn(12)
    num_draws = 20_000
    tokens = drawn(logits_V.expand(num_draws, -1), torch.rand(num_draws), Sampling(temperature, top_p))
    probs_V = (logits_V.double() / temperature).softmax(dim=-1)
    order_V = probs_V.argsort(descending=True)
    num_kept = 1 + int((probs_V[order_V].cumsum(0) < top_p).sum())  # the fewest whose mass reaches top_p
    kept = order_V[:num_kept].tolist()
    counts = Counter(tokens.tolist())
    assert set(counts) == set(kept)
    expected = probs_V[kept] / probs_V[kept].sum() * num_draws
    assert chisquare([counts[token] for token in kept], expected.numpy()).pvalue > 0.01
    assert (num_kept < 12) == (top_p < 1)


def test_the_least_and_the_greatest_draw_fall_on_possible_tokens():
    logits_BV = torch.tensor([[-torch.inf, 1.0, 2.0, -torch.inf]] * 2)
    draws_B = torch.tensor([0.0, 1 - 2**-24])
    for top_p in (1.0, 0.999):
        assert set(drawn(logits_BV, draws_B, Sampling(1.0, top_p)).tolist()) == {1, 2}


def test_draws_are_uniform_and_apart():
    draws_BD = uniform_draws(range(50), 40)
    assert draws_BD.min() >= 0
    assert draws_BD.max() < 1
    assert draws_BD.mean().item() == pytest.approx(0.5, abs=0.02)  # standard error 0.0065
    assert len(draws_BD[:, 0].unique()) == 50
