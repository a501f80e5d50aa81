"""Bounds that several intervals share: of one quantity Student's t, of alike ones the same, of unlike ones more."""

import numpy as np
import pytest

from eval.intervals import simultaneous_bound, t_bound

UNITS, DRAWS = 20, 4000


def bound(*quantities):
    return simultaneous_bound(np.array(quantities), UNITS - 1, 0.95, num_draws=DRAWS, seed=3)


def test_of_a_single_quantity_nothing_is_drawn():
    """Drawn, it would differ by the noise of the draws."""
    values = np.random.default_rng(1).normal(size=UNITS)
    assert bound(values) == t_bound(UNITS - 1, 0.95)


def test_several_quantities_need_more_the_less_they_are_alike():
    first, second = np.random.default_rng(2).normal(size=(2, UNITS))
    least = t_bound(UNITS - 1, 0.95)
    assert bound(first, first) == pytest.approx(least, rel=0.05)
    assert bound(first, second) > 1.05 * least
    assert bound(first, second) <= t_bound(UNITS - 1, 1 - 0.05 / 2) * 1.05  # Bonferroni bounds it
