"""The guard of a draft that learns while it serves: how often it errs in a run, and what it tells.

Shape suffixes used in this file:
    C = checks, R = requests
"""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from distill.online.learning import GUARD_LEVEL, RequestFeed, are_below_zero, is_worse
from distill.online.serving import Journal
from distill.recipe.sections import OnlineConfig

RUNS, CHECKS, REQUESTS = 1500, 75, 32
LAWS = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "heavy tails": lambda rng, shape: rng.laplace(size=shape),
    "shares of ten tokens": lambda rng, shape: (rng.binomial(10, 0.4, shape) - rng.binomial(10, 0.4, shape)) / 10,
    "rare losses": lambda rng, shape: 1 - rng.exponential(size=shape),
    "rare gains": lambda rng, shape: rng.exponential(size=shape) - 1,
}


def share_told(law, *, runs=RUNS, checks=CHECKS, requests=REQUESTS, lost=0.0):
    """In how many runs a draft is called worse whose mean gain is -lost."""
    gain_CR = LAWS[law](np.random.default_rng(23), (runs * checks, requests)) - lost
    return are_below_zero(gain_CR, GUARD_LEVEL).reshape(runs, checks).any(axis=1).mean()


@pytest.mark.parametrize(("law", "most"), [(law, 0.14 if law == "rare gains" else 0.06) for law in LAWS])
def test_a_run_without_a_regression_rolls_back_as_seldom_as_is_promised(law, most):
    spread = 2.6 * math.sqrt(most * (1 - most) / RUNS)
    assert share_told(law) <= most + spread


def test_the_level_is_used_where_differences_are_normal():
    assert share_told("normal") > 0.025


@pytest.mark.parametrize(("requests", "lost", "told"), [(32, 1.0, 0.97), (32, 0.5, 0.28), (128, 0.5, 0.99)])
def test_a_regression_is_told_as_often_as_is_said(requests, lost, told):
    found = share_told("normal", runs=4000, checks=1, requests=requests, lost=lost)
    assert abs(found - told) < 0.025


def test_only_a_worse_draft_is_told():
    good = [0.5 + 0.01 * (number % 5) for number in range(32)]
    lower = [alpha - 0.1 - 0.01 * (number % 3) for number, alpha in enumerate(good)]
    assert is_worse(lower, good)
    assert not is_worse(good, lower)
    assert not is_worse(good, good)
    assert is_worse([alpha - 0.25 for alpha in good], good)


def test_the_same_loss_everywhere_is_told_and_the_same_gain_is_not():
    assert is_worse([0.25] * 32, [0.5] * 32)
    assert not is_worse([0.5] * 32, [0.25] * 32)


@pytest.mark.parametrize(("requests", "told"), [(9, False), (10, True)])
def test_of_few_requests_nothing_is_told(requests, told):
    """Ten agree by accident in 1 of 1,024 cases, which is less often than 0.001."""
    assert is_worse([0.25] * requests, [0.5] * requests) is told


@dataclass
class Requests:
    """No requests, with a journal."""

    journal: Journal


def feed_of(tmp_path, monkeypatch, *, batches, batch_size, seed=3):
    """A feed that keeps six requests."""
    monkeypatch.setattr("distill.online.learning.BUFFER_SIZE", 6)
    stream = {"sources": [{"path": "x.jsonl"}]}
    online = OnlineConfig.model_validate({"stream": stream, "update_interval": 2, "steps_per_update": 1})
    feed = RequestFeed(Requests(Journal(tmp_path, 0, 1, 2)), online, seed=seed, batch_size=batch_size)
    feed.batches = batches
    return feed


def test_a_step_fills_up_with_the_newest_requests(tmp_path, monkeypatch):
    def draw(batches, batch_size):
        return feed_of(tmp_path, monkeypatch, batches=batches, batch_size=batch_size).draw_old(9)

    assert draw(7, 99) == [14, 15, 16, 17]  # 18 and 19 are new
    assert len(draw(7, 5)) == 3
    assert draw(7, 5) == draw(7, 5)
    assert len({tuple(draw(step, 4)) for step in range(20)}) > 1
    assert draw(0, 2) == []
    assert feed_of(tmp_path, monkeypatch, batches=0, batch_size=8).draw_old(0) == []


def test_requests_outside_the_buffer_are_not_needed(tmp_path, monkeypatch):
    feed = feed_of(tmp_path, monkeypatch, batches=0, batch_size=2)
    assert [feed.first_kept(updates) for updates in (0, 3, 4, 10)] == [0, 0, 2, 14]


def test_processes_share_a_stream_without_overlap(tmp_path):
    shares = [Journal(tmp_path, rank, 2, 4) for rank in range(2)]
    assert [share.of_update(1) for share in shares] == [[4, 6], [5, 7]]
    assert sorted(n for share in shares for u in range(3) for n in share.of_update(u)) == list(range(12))
