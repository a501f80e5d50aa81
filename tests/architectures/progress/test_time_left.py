"""What a loop says of its time left is right within a factor of two, once a few items are done."""

import random

import pytest

from architectures.progress.time_left import TimeLeft

FEW = 3  # items, before which nothing is promised


def told_and_true(item_s, works=None):
    """(time left told, time left in truth) after each item but the last."""
    works = works or [1.0] * len(item_s)
    left, now_s, pairs = TimeLeft(sum(works), 100.0), 100.0, []
    for number, (seconds, work) in enumerate(zip(item_s, works, strict=True), start=1):
        now_s += seconds
        left.advance(work, now_s)
        pairs.append((left.seconds, sum(item_s[number:])))
    return pairs[:-1]


def worst(pairs):
    """The largest factor between two of a pair."""
    return max(max(told / true, true / told) for told, true in pairs)


def recorded(seed, count=80):
    """Items such as answers of unequal length take."""
    draw = random.Random(seed)
    return [draw.lognormvariate(0, 0.5) for _ in range(count)]


def test_equal_items_are_told_exactly():
    assert told_and_true([2.0] * 10) == [(2.0 * left, 2.0 * left) for left in range(9, 0, -1)]


def test_nothing_is_told_before_the_first_item():
    assert TimeLeft(10, 0.0).seconds is None


def test_a_slow_first_item_is_forgotten():
    """Models are loaded while the first item is waited for."""
    assert worst(told_and_true([60.0] + [1.0] * 50)[FEW - 1 :]) == pytest.approx(1)


@pytest.mark.parametrize("factor", [3, 5, 10])
def test_a_slow_down_on_the_way_is_seen_within_a_few_items(factor):
    """Another program starts when half of the loop is done; before that nobody can know."""
    assert worst(told_and_true([1.0] * 40 + [float(factor)] * 40)[40 + 8 :]) < 2


def test_a_loop_that_becomes_faster_is_told_too():
    assert worst(told_and_true([5.0] * 20 + [1.0] * 60)[20 + 10 :]) < 2


@pytest.mark.parametrize("seed", range(20))
def test_items_of_unequal_time(seed):
    """Near the end single items decide, which no one can know."""
    assert worst(told_and_true(recorded(seed))[FEW + 2 : -8]) < 2


def test_items_of_known_work_are_weighed():
    """Greedy removal of layers: each step tries fewer cuts of fewer layers."""
    works = [float(left**2) for left in range(30, 1, -1)]
    seconds = [0.1 * work for work in works]
    assert worst(told_and_true(seconds, works)) == pytest.approx(1)
    assert worst(told_and_true(seconds)[FEW:]) > 2


def test_many_small_items_are_not_kept():
    left = TimeLeft(10**4, 0.0)
    for number in range(1, 10**4):
        left.advance(1, float(number))
    assert len(left._marks) < 10**4 // 3
