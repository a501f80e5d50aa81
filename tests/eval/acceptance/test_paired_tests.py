"""Tests of two drafts on the same tokens, against enumeration and against their own promise."""

from itertools import product
from math import comb

import numpy as np
import pytest

from eval.acceptance.estimates import Resampling
from eval.acceptance.paired_tests import compare_matches, even_chance_p, sign_flip_p

RESAMPLING = Resampling(confidence=0.95, num_resamples=2000, seed=17)


@pytest.mark.parametrize(("won", "lost"), [(0, 0), (0, 1), (1, 5), (7, 2), (4, 4), (30, 12)])
def test_mcnemars_exact_p_is_a_binomial_tail_twice(won, lost):
    total, fewer = won + lost, min(won, lost)
    tail = sum(comb(total, k) for k in range(fewer + 1)) / 2**total
    assert even_chance_p(won, lost) == pytest.approx(min(1.0, 2 * tail))
    assert even_chance_p(won, lost) == even_chance_p(lost, won)


def test_the_sign_flip_p_is_the_share_of_flips_as_extreme():
    gains = np.array([3, -1, 4, 2, 0, 5])
    sums = [np.dot(signs, gains) for signs in product((-1, 1), repeat=6)]
    assert sign_flip_p(gains, RESAMPLING) == pytest.approx(np.mean(np.abs(sums) >= gains.sum()))
    assert sign_flip_p(-gains, RESAMPLING) == sign_flip_p(gains, RESAMPLING)


def test_no_gain_is_no_evidence():
    assert sign_flip_p(np.zeros(4), RESAMPLING) == 1
    assert sign_flip_p(np.array([3]), RESAMPLING) == 1


def test_many_prompts_are_flipped_at_random_and_repeatably():
    gains = np.random.default_rng(0).normal(0.3, 1, 40)
    p = sign_flip_p(gains, RESAMPLING)
    assert p == sign_flip_p(gains, RESAMPLING)
    assert p != sign_flip_p(gains, Resampling(confidence=0.95, num_resamples=2000, seed=18))
    few = sign_flip_p(gains, Resampling(confidence=0.95, num_resamples=10, seed=17))
    assert few * 11 == pytest.approx(round(few * 11))  # a share of ten flips and the data themselves
    flips = np.random.default_rng(1).choice((-1, 1), (100_000, 40)) @ gains
    assert p == pytest.approx(np.mean(np.abs(flips) >= gains.sum()), abs=0.03)


def test_tokens_and_prompts_are_counted():
    first = [np.array([1.0, 1, 0, 0]), np.array([1.0, 0]), np.array([0.0])]
    second = [np.array([1.0, 0, 0, 0]), np.array([0.0, 1]), np.array([1.0])]
    found = compare_matches(first, second, RESAMPLING)
    assert (found.both, found.only_first, found.only_second, found.neither) == (1, 2, 2, 2)
    assert (found.prompts_more, found.prompts_fewer) == (1, 1)
    swapped = compare_matches(second, first, RESAMPLING)
    assert (swapped.only_first, swapped.prompts_more, swapped.prompts_fewer) == (2, 1, 1)
    assert (found.mcnemar_p, found.sign_p, found.sign_flip_p) == (1, 1, 1)


def test_a_draft_does_not_differ_from_itself():
    matches = [np.array([1.0, 0, 1]), np.array([0.0, 1])]
    found = compare_matches(matches, matches, RESAMPLING)
    assert (found.only_first, found.only_second) == (0, 0)
    assert (found.mcnemar_p, found.sign_p, found.sign_flip_p) == (1, 1, 1)


def test_where_a_prompts_tokens_depend_mcnemar_finds_differences_that_are_not():
    """Two equal drafts, but all 20 tokens of a prompt are won together: the docstring's warning, measured."""
    rng = np.random.default_rng(3)
    found = {"mcnemar_p": 0, "sign_p": 0, "sign_flip_p": 0}
    for _ in range(200):
        coins = rng.random((2, 15)) < 0.5
        first, second = ([np.full(20, float(coin)) for coin in row] for row in coins)
        result = compare_matches(first, second, Resampling(confidence=0.95, num_resamples=200, seed=1))
        for name in found:
            found[name] += getattr(result, name) < 0.05
    assert found["mcnemar_p"] > 0.4 * 200
    assert found["sign_p"] < 0.1 * 200
    assert found["sign_flip_p"] < 0.1 * 200
