"""Replay against enumeration, against the exact law of speculative sampling, and against a live sampler."""

from itertools import product

import numpy as np
import pytest
import torch

from eval.decoding.sampling import EXACT_GREEDY_DRAFT, EXACT_SAMPLED_DRAFT, Sampling
from eval.replay import binned_counts, count_trace, pool, replay_counts, replay_response, tau


def rounds_of(accept_bits, num_speculative_tokens):
    """Plain reference: walk through a text whose accept decisions are known."""
    start, steps = 0, []
    while start < len(accept_bits):
        accepted, room = 0, min(num_speculative_tokens, len(accept_bits) - start - 1)
        while accepted < room and accept_bits[start + accepted]:
            accepted += 1
        steps.append((start, accepted))
        start += accepted + 1
    return steps


def enumerated_counts(accept, num_speculative_tokens):
    """Plain reference: every pattern of accepts, weighted by its chance."""
    weighted = []
    for bits in product((0, 1), repeat=len(accept)):
        chance = np.prod(np.where(bits, accept, 1 - np.array(accept)))
        counts = count_trace(
            rounds_of(bits, num_speculative_tokens),
            num_tokens=len(accept),
            num_speculative_tokens=num_speculative_tokens,
        )
        rows = (counts.possible, counts.reached, counts.accepted)
        weighted.append(chance * np.array([[counts.steps] * num_speculative_tokens, *rows]))
    return sum(weighted)


@pytest.mark.parametrize("num_speculative_tokens", [*range(1, 9), 16])
def test_expected_counts_equal_the_sum_over_all_accept_patterns(num_speculative_tokens):
    accept = [0.9, 0.2, 1.0, 0.55, 0.0, 0.7, 0.35]
    counts = replay_counts(np.array(accept), num_speculative_tokens=num_speculative_tokens)
    expected = enumerated_counts(accept, num_speculative_tokens)
    assert counts.steps == pytest.approx(expected[0, 0], abs=1e-12)
    assert counts.possible == pytest.approx(expected[1], abs=1e-12)
    assert counts.reached == pytest.approx(expected[2], abs=1e-12)
    assert counts.accepted == pytest.approx(expected[3], abs=1e-12)


@pytest.mark.parametrize("num_speculative_tokens", range(1, 17))
def test_at_temperature_zero_counts_are_those_of_the_one_possible_trace(num_speculative_tokens):
    bits = np.random.default_rng(num_speculative_tokens).random(57) < 0.6
    counts = replay_counts(bits.astype(float), num_speculative_tokens=num_speculative_tokens)
    assert counts == count_trace(
        rounds_of(bits, num_speculative_tokens), num_tokens=57, num_speculative_tokens=num_speculative_tokens
    )


def markov_pair(num_tokens, seed):
    rng = np.random.default_rng(seed)
    target, draft = (rng.dirichlet(np.full(num_tokens, 0.7), size=num_tokens) for _ in range(2))
    return target, 0.7 * target + 0.3 * draft


def exact_steps(target, draft, length, num_speculative_tokens):
    """Expected steps by the law of the algorithm itself, over states (last token, tokens left)."""
    both, rest = np.minimum(target, draft), np.maximum(target - draft, 0)
    steps = np.zeros((length + 1, len(target)))
    for left in range(1, length + 1):
        room = min(num_speculative_tokens, left - 1)
        value = target @ steps[left - room - 1]  # all proposals kept: one more token from the target
        for k in reversed(range(room)):
            value = both @ value + rest @ steps[left - k - 1]
        steps[left] = 1 + value
    return steps[length][0]


def markov_accept(target, draft, text):
    """r_t along a text that follows token 0."""
    before, after = (0, *text[:-1]), text
    return np.minimum(1, draft[before, after] / target[before, after])


@pytest.mark.parametrize("num_speculative_tokens", [1, 2, 3, 6])
def test_replay_averaged_over_all_texts_is_the_exact_law(num_speculative_tokens):
    target, draft = markov_pair(3, seed=4)
    mean = 0.0
    for text in product(range(3), repeat=5):
        chance = np.prod(target[(0, *text[:-1]), text])
        mean += (
            chance
            * replay_counts(markov_accept(target, draft, text), num_speculative_tokens=num_speculative_tokens).steps
        )
    assert mean == pytest.approx(exact_steps(target, draft, 5, num_speculative_tokens), abs=1e-12)


@pytest.mark.parametrize(
    ("alpha", "num_speculative_tokens", "expected_tau", "expected_utilisation"),
    [(0.8, 4, 3.3616, 0.5904), (0.6, 5, 2.3834, 0.2767), (0.9, 8, 6.1258, 0.6407), (0.5, 3, 1.875, 0.2917)],
)
def test_golden_steps_of_independent_accepts(alpha, num_speculative_tokens, expected_tau, expected_utilisation):
    """reference/evaluation.md 1.4; the end of 5,000 tokens moves them by a few steps' part of 1e-3."""
    counts = replay_counts(np.full(5000, alpha), num_speculative_tokens=num_speculative_tokens)
    assert tau(counts) == pytest.approx(expected_tau, rel=2e-3)
    assert counts.accepted_tokens / counts.proposed_tokens == pytest.approx(expected_utilisation, rel=2e-3)
    assert counts.accepted_tokens / sum(counts.reached) == pytest.approx(alpha, rel=1e-12)


@pytest.mark.parametrize("draft_is_sampled", [True, False])
def test_exact_match_replayed_averaged_over_all_texts_is_the_exact_law(draft_is_sampled):
    """A proposal d is kept if the target samples d as well; the target's sample is emitted either way."""
    target, draft = markov_pair(3, seed=4)
    proposal = draft if draft_is_sampled else np.eye(3)[draft.argmax(1)]
    mean = 0.0
    for text in product(range(3), repeat=5):
        before = (0, *text[:-1])
        logits = [torch.tensor(model[list(before)]).log() for model in (target, draft)]
        rule = EXACT_SAMPLED_DRAFT if draft_is_sampled else EXACT_GREEDY_DRAFT
        accept = replay_response(*logits, text, sampling=Sampling(1.0)).rules[rule].accept
        mean += np.prod(target[before, text]) * replay_counts(accept, num_speculative_tokens=3).steps
    assert mean == pytest.approx(exact_match_steps(target, proposal, length=5, num_speculative_tokens=3), abs=1e-12)


def exact_match_steps(target, proposal, *, length, num_speculative_tokens):
    """Expected steps after token 0, by recursion over single tokens."""

    def rounds_left(last, left, room):
        if left == 0:
            return 0.0
        if room == 0 or left == 1:  # the step's last token is the target's own
            return sum(target[last, x] * (left > 1) * (1 + new_round(x, left - 1)) for x in range(3))
        return sum(
            target[last, x]
            * (
                proposal[last, x] * rounds_left(x, left - 1, room - 1)
                + (1 - proposal[last, x]) * (1 + new_round(x, left - 1))
            )
            for x in range(3)
        )

    def new_round(last, left):
        return rounds_left(last, left, num_speculative_tokens)

    return 1 + new_round(0, length)


@pytest.mark.parametrize("num_speculative_tokens", [1, 3, 16])
def test_steps_parted_by_where_they_start_are_the_steps(num_speculative_tokens):
    rng = np.random.default_rng(5)
    accept, bins = rng.random(60), rng.integers(2, 6, 60)
    parted = binned_counts(accept, bins, num_speculative_tokens=num_speculative_tokens)
    whole = replay_counts(accept, num_speculative_tokens=num_speculative_tokens)
    assert list(parted) == [2, 3, 4, 5]
    together = pool(list(parted.values()))
    assert together.steps == pytest.approx(whole.steps)
    for name in ("possible", "reached", "accepted"):
        assert getattr(together, name) == pytest.approx(getattr(whole, name))
    first = binned_counts(accept, (np.arange(60) > 0).astype(int), num_speculative_tokens=num_speculative_tokens)[0]
    assert first.steps == 1
    assert first.accepted == pytest.approx(np.cumprod(accept[:num_speculative_tokens]))
