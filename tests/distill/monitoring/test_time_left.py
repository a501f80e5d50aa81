"""The time left of a training is right within a factor of two, evaluations that are still to come included."""

import pytest

from distill.monitoring.time_left import TrainingTimeLeft, share_of

BATCHES = 100


def told_and_true(batch_s, *, evaluation_s=0.0, evaluate_at=(), every=None):
    """(told, true) after each batch but the last; each evaluation behind the batch of that number."""
    left, now_s, pairs = TrainingTimeLeft(0.0, 50.0, every), 50.0, []
    total_s = sum(batch_s) + evaluation_s * len(evaluate_at)
    for number, seconds in enumerate(batch_s, start=1):
        now_s += seconds
        left.trained(number / len(batch_s), now_s)
        pairs.append((left.seconds, 50.0 + total_s - now_s))
        if number in evaluate_at:
            now_s += evaluation_s
            left.evaluated(number / len(batch_s), evaluation_s)
    return pairs[:-1]


def worst(pairs):
    return max(max(told / true, true / told) for told, true in pairs)


def test_equal_batches_are_told_exactly():
    assert worst(told_and_true([2.0] * BATCHES)) == pytest.approx(1)


def test_evaluations_to_come_count_once_one_was_seen():
    """Four evaluations that each take as long as 50 batches."""
    pairs = told_and_true([1.0] * BATCHES, evaluation_s=50.0, evaluate_at=(25, 50, 75, 100), every=0.25)
    assert worst(pairs[25:]) < 1.05
    unknown = told_and_true([1.0] * BATCHES, evaluation_s=50.0, evaluate_at=(25, 50, 75, 100))
    assert worst(unknown[25:]) < 1.05  # their distance is that of the first from the start


def test_a_first_evaluation_tells_of_the_others_from_the_first_batch_on():
    left = TrainingTimeLeft(0.0, 0.0, 0.5)
    left.evaluated(0.0, 30.0)
    left.trained(0.01, 31.0)
    assert left.seconds == pytest.approx(99 + 2 * 30)


def test_a_slow_down_on_the_way_is_seen():
    assert worst(told_and_true([1.0] * 50 + [5.0] * 50)[50 + 10 :]) < 2


def test_nothing_is_told_before_the_first_batch():
    assert TrainingTimeLeft(0.5, 0.0, None).seconds is None


def test_a_resumed_training_counts_what_is_left_of_it():
    left = TrainingTimeLeft(0.5, 0.0, None)
    left.trained(0.6, 10.0)
    assert left.seconds == pytest.approx(40)


@pytest.mark.parametrize(
    ("interval", "whole", "share"),
    [("0.25dur", "2ep", 0.25), ("100ba", "400ba", 0.25), ("1ep", "4ep", 0.25), ("100ba", "1ep", None)],
)
def test_what_share_of_a_training_an_interval_is(interval, whole, share):
    assert share_of(interval, whole) == share
