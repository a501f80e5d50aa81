"""Steps take turns in an order drawn anew, times count once they have settled, and figures are what they say."""

from itertools import pairwise

import numpy as np
import pytest

from eval.acceptance.intervals import least_units
from eval.latency import timing
from eval.latency.timing import WARM_UP_LIMIT, has_settled, summarise, time_alone, time_together, warm_up

CONFIDENCE = 0.95


@pytest.fixture(autouse=True)
def warmed_up_as_for_users(monkeypatch):
    monkeypatch.setattr(timing, "WARM_UP_LIMIT", WARM_UP_LIMIT)


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
    summary = summarise(list(range(1, 12)), CONFIDENCE)
    assert [one.value for one in (summary.p10_ms, summary.p50_ms, summary.p90_ms)] == [2000, 6000, 10_000]
    assert summary.median_ms == 6000
    assert summary.p50_ms.interval == (2000, 10_000)  # of 11 values, 2 to 10 hold it in 98.8 % and 3 to 9 in 93.5 %


def test_the_interval_is_the_medians_at_the_confidence_asked_for():
    assert summarise([1.0] * 20 + [1000.0], CONFIDENCE).p50_ms.interval == (1000, 1000)
    (wide_low, wide_high), (low, high) = (summarise(range(50), each).p50_ms.interval for each in (0.99, 0.5))
    assert wide_low < low < high < wide_high


@pytest.mark.parametrize(("repeats", "has_interval"), [(1, False), (5, False), (6, True)])
def test_few_repetitions_have_no_interval(repeats, has_interval):
    summary = summarise(list(range(1, repeats + 1)), CONFIDENCE)
    assert summary.p50_ms.interval == ((1000, 6000) if has_interval else None)


@pytest.mark.parametrize("confidence", [0.5, 0.75, 0.9, 0.95, 0.99])
def test_a_median_has_an_interval_from_the_least_units_on(confidence):
    least = least_units(confidence)
    assert summarise(range(1, least), confidence).p50_ms.interval is None
    assert summarise(range(1, least + 1), confidence).p50_ms.interval == (1000, 1000 * least)


def bounds(repeats, name):
    """Of a percentile of as many values from 0 on, in their own unit; None where there is none on either side."""
    found = getattr(summarise([each / 1000 for each in range(repeats)], CONFIDENCE), name)
    return found.interval or (None, None)


def test_a_bound_is_there_only_where_a_repetition_is_surely_beyond():
    """The chance that none of 30 lies below the 10th percentile is 0.9^30 = 4 %, and of 40 it is 1.5 %."""
    assert bounds(30, "p10_ms")[0] is None
    assert bounds(40, "p10_ms")[0] == 0
    assert bounds(30, "p90_ms")[1] is None
    assert bounds(40, "p90_ms")[1] == 39


def test_the_99th_percentile_is_told_of_200_repetitions_and_bounded_above_by_368():
    assert summarise(range(199), CONFIDENCE).p99_ms is None
    few, many = (bounds(repeats, "p99_ms") for repeats in (200, 368))
    assert few[0] is not None
    assert few[1] is None
    assert many[1] == 367  # 0.99^368 < 2.5 % < 0.99^366
    assert bounds(366, "p99_ms")[1] is None


def test_every_percentile_has_its_own_bounds():
    summary = summarise(list(range(400)), CONFIDENCE)
    told = [summary.p10_ms, summary.p50_ms, summary.p90_ms, summary.p99_ms]
    for one in told:
        low, high = one.interval
        assert low < one.value < high
    tenth, median, ninetieth, last = (one.interval for one in told)
    assert tenth[1] < median[0] < median[1] < ninetieth[0] < ninetieth[1] < last[1]


@pytest.mark.parametrize("repeats", [12, 30, 100])
def test_bounds_hold_the_percentile_whatever_the_law_is(repeats):
    """Log-normal times: each bound is wrong in at most 2.5 %; 600 runs, four standard errors."""
    rng = np.random.default_rng(3)
    truths = {"p10_ms": 1000 * np.exp(-1.2816), "p50_ms": 1000.0, "p90_ms": 1000 * np.exp(1.2816)}
    summaries = [summarise(np.exp(rng.normal(size=repeats)), CONFIDENCE) for _ in range(600)]
    for name, truth in truths.items():
        bounds = [getattr(summary, name).interval or (None, None) for summary in summaries]
        above = np.mean([low is not None and low > truth for low, _ in bounds])
        below = np.mean([high is not None and high < truth for _, high in bounds])
        assert max(above, below) < 0.025 + 4 * (0.025 * 0.975 / 600) ** 0.5


def test_steps_by_themselves_run_one_kind_after_the_other():
    order = []
    steps = {name: (lambda name=name: order.append(name) or 1.0) for name in "abc"}
    timed = time_alone(steps, np.random.default_rng(0), 5, after_each=lambda: None)
    assert {name: list(values) for name, values in timed.seconds.items()} == dict.fromkeys("abc", [1.0] * 5)
    changes = sum(before != after for before, after in pairwise(order))
    assert (len(order), changes) == (3 * (10 + 5), 2)
    assert (timed.warm_up_repeats, timed.is_settled) == (10, True)


def test_one_kind_that_never_settles_is_told():
    growing = (2.0**n for n in range(100))
    timed = time_alone(
        {"calm": lambda: 1.0, "wild": lambda: next(growing)}, np.random.default_rng(0), 2, after_each=lambda: None
    )
    assert (timed.warm_up_repeats, timed.is_settled) == (WARM_UP_LIMIT, False)
