"""Verification steps along a response."""

import numpy as np
import pytest

from distill.online.serving import steps_along
from eval.replay import replay_counts


@pytest.mark.parametrize(
    ("accepted", "num_speculative_tokens", "steps"),
    [
        ("yynyyyyy", 3, [(0, 3, 2), (3, 3, 3), (7, 0, 0)]),  # one corrected; three accepted and a bonus; the last
        ("nnnn", 2, [(0, 2, 0), (1, 2, 0), (2, 1, 0), (3, 0, 0)]),
        ("yyyyy", 4, [(0, 4, 4)]),
    ],
)
def test_cases_by_hand(accepted, num_speculative_tokens, steps):
    assert steps_along([each == "y" for each in accepted], num_speculative_tokens=num_speculative_tokens) == steps


@pytest.mark.parametrize("num_speculative_tokens", [1, 2, 5])
def test_steps_are_as_many_as_exact_replay_counts(num_speculative_tokens):
    accepted = np.random.default_rng(0).random(40) < 0.6
    counts = replay_counts(accepted.astype(float), num_speculative_tokens=num_speculative_tokens)
    assert len(steps_along(list(accepted), num_speculative_tokens=num_speculative_tokens)) == pytest.approx(
        counts.steps
    )
