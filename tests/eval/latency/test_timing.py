"""Steps take turns in an order drawn anew, times count once they have settled, and figures are what they say."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from eval.acceptance import Resampling
from eval.latency.timing import WARM_UP_LIMIT, has_settled, summarise, time_alone, time_together, warm_up

RESAMPLING = Resampling(confidence=0.95, num_resamples=200, seed=17)


def test_the_order_of_steps_changes_from_repetition_to_repetition():
    orders = []
    steps = {("step", n): (lambda n=n: orders.append(n) or 1.0) for n in range(6)}
    time_together(steps, np.random.default_rng(0), range(3))
    repetitions = [tuple(orders[i : i + 6]) for i in range(0, len(orders), 6)]
    assert all(sorted(order) == list(range(6)) for order in repetitions)
    assert len(set(repetitions)) > 5
    assert len(repetitions) == 10 + 3


def test_warm_up_ends_when_times_settle():
    times = iter([9.0, 5.0, 3.0, 2.0, 1.5, *[1.0] * 100])
    assert warm_up(lambda: next(times)) == (13, True)


def test_warm_up_gives_up_on_times_that_never_settle():
    times = (2.0**n for n in range(100))
    assert warm_up(lambda: next(times)) == (WARM_UP_LIMIT, False)


def test_ten_repetitions_are_the_least():
    assert not has_settled([1.0] * 9)
    assert has_settled([1.0] * 10)
    assert not has_settled([1.0] * 5 + [1.03] * 5)
    assert not has_settled([1.03] * 5 + [1.0] * 5)


def test_times_have_settled_when_medians_differ_by_less_than_two_percent():
    assert has_settled([1.0] * 5 + [1.019] * 5)
    assert not has_settled([1.0] * 5 + [1.021] * 5)
    assert has_settled([1.0] * 9 + [50.0])  # one step that was interrupted


def test_summary_of_times():
    summary = summarise(list(range(1, 12)), RESAMPLING)
    assert summary.percentiles_s == {10: 2, 50: 6, 90: 10, 99: pytest.approx(10.9)}
    assert summary.median_s == 6
    low, high = summary.interval_s
    assert 2 < low < 6 < high < 10
    assert summary == summarise(list(range(1, 12)), RESAMPLING)


def test_the_interval_is_the_medians_at_the_confidence_asked_for():
    assert summarise([1.0] * 20 + [1000.0], RESAMPLING).interval_s == (1, 1)
    (wide_low, wide_high), (low, high) = (
        summarise(range(50), replace(RESAMPLING, confidence=confidence)).interval_s for confidence in (0.99, 0.5)
    )
    assert wide_low < low < high < wide_high


def test_one_repetition_has_no_interval():
    alone = summarise([3.0], RESAMPLING)
    assert (set(alone.percentiles_s.values()), alone.intervals_s, alone.interval_s) == ({3.0}, {}, None)


def test_every_percentile_has_its_own_interval():
    summary = summarise(list(range(200)), RESAMPLING)
    for percentile, (low, high) in summary.intervals_s.items():
        assert low < summary.percentiles_s[percentile] < high or percentile == 99
    assert summary.intervals_s[10][1] < summary.intervals_s[50][0] < summary.intervals_s[90][0]


def test_steps_by_themselves_run_one_kind_after_the_other():
    order = []
    steps = {name: (lambda name=name: order.append(name) or 1.0) for name in "abc"}
    timed = time_alone(steps, np.random.default_rng(0), 5)
    assert {name: list(values) for name, values in timed.seconds.items()} == dict.fromkeys("abc", [1.0] * 5)
    changes = sum(before != after for before, after in pairwise(order))
    assert (len(order), changes) == (3 * (10 + 5), 2)
    assert (timed.warm_up_repeats, timed.is_settled) == (10, True)


def test_one_kind_that_never_settles_is_told():
    growing = (2.0**n for n in range(100))
    timed = time_alone({"calm": lambda: 1.0, "wild": lambda: next(growing)}, np.random.default_rng(0), 2)
    assert (timed.warm_up_repeats, timed.is_settled) == (WARM_UP_LIMIT, False)
