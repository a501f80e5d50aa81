"""What is kept of served requests, and what a step learns."""

import numpy as np
import pytest

from distill.online.learning import Buffer
from distill.online.served import RequestShare


def filled(eviction, *, size=6, intervals=10, own=2, seed=3):
    """A buffer after so many updates."""
    share, buffer = RequestShare(0, 1, own), Buffer(size, eviction, seed)
    for update in range(intervals):
        buffer.add(share.of_update(update))
    return buffer


def test_the_oldest_make_way():
    buffer = filled("oldest")
    assert buffer.kept == [14, 15, 16, 17, 18, 19]
    assert buffer.evicted == [12, 13]


@pytest.mark.parametrize("eviction", ["oldest", "random"])
def test_never_more_than_its_size_and_always_the_newest(eviction):
    for intervals in range(1, 10):
        buffer = filled(eviction, intervals=intervals)
        assert len(buffer.kept) == min(6, 2 * intervals)
        assert {2 * intervals - 2, 2 * intervals - 1} <= set(buffer.kept)


def test_random_eviction_takes_any_old_request_with_the_same_chance():
    """Binomial, 2,000 seeds: a share of 1/4 of the old ones within 5 standard deviations."""
    gone = np.zeros(4)
    for seed in range(2000):
        buffer = Buffer(4, "random", seed)
        buffer.add([0, 1, 2, 3])
        buffer.add([4])
        gone[buffer.evicted[0]] += 1
    assert abs(gone / 2000 - 0.25).max() < 5 * (0.25 * 0.75 / 2000) ** 0.5


def test_it_is_the_same_when_it_is_counted_again():
    assert filled("random").kept == filled("random").kept
    assert filled("random").kept != filled("random", seed=4).kept


def test_a_step_learns_all_that_is_new_and_fills_up_with_others():
    buffer = filled("oldest")
    chosen = buffer.batch([18, 19], size=5, step=7)
    assert chosen[:2] == [18, 19]
    assert len(set(chosen)) == 5
    assert set(chosen) <= set(buffer.kept)
    assert chosen == buffer.batch([18, 19], size=5, step=7)
    assert len({tuple(buffer.batch([18, 19], size=4, step=step)) for step in range(20)}) > 1
    assert buffer.batch([18, 19], size=2, step=0) == [18, 19]
    assert filled("oldest", intervals=1).batch([0, 1], size=8, step=0) == [0, 1]


def test_processes_share_a_stream_without_overlap():
    shares = [RequestShare(rank, 2, 4) for rank in range(2)]
    assert [share.of_update(1) for share in shares] == [[4, 6], [5, 7]]
    assert sorted(n for share in shares for u in range(3) for n in share.of_update(u)) == list(range(12))
