"""The sign-flip test of two drafts on the same prompts, against enumeration."""

from itertools import product

import numpy as np
import pytest

from eval.intervals import Resampling, sign_flip_p

RESAMPLING = Resampling(confidence=0.95, num_resamples=2000, seed=17)


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
