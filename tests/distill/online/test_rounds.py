"""Rounds along an answer, and which tokens of it are mistakes."""

import numpy as np
import pytest

from distill.online.replayed import rounds_along
from eval.acceptance.replay import replay_counts


def test_a_case_by_hand():
    """Lookahead 3: a and b kept, c corrected; d, e, f kept, so that g is a bonus and no mistake; h is the last."""
    keeps = [True, True, False, True, True, True, True, True]
    rounds = rounds_along(keeps, lookahead=3)
    assert rounds.starts == (0, 3, 7)
    assert rounds.proposed == (3, 3, 0)
    assert rounds.kept == (2, 3, 0)
    assert rounds.mistakes == (2,)


def test_nothing_kept_makes_every_token_but_the_last_a_mistake():
    rounds = rounds_along([False] * 4, lookahead=2)
    assert rounds.mistakes == (0, 1, 2)
    assert rounds.proposed == (2, 2, 1, 0)


def test_all_kept_makes_no_mistake():
    assert rounds_along([True] * 9, lookahead=4).mistakes == ()


@pytest.mark.parametrize("lookahead", [1, 2, 5])
def test_rounds_are_as_many_as_exact_replay_counts(lookahead):
    keeps = np.random.default_rng(0).random(40) < 0.6
    counts = replay_counts(keeps.astype(float), lookahead=lookahead)
    assert len(rounds_along(list(keeps), lookahead=lookahead).starts) == pytest.approx(counts.rounds)
