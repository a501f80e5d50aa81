"""The order in which requests of several sets come. Pure."""

import random
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from typing import TypeVar

from eval.streams.request import Labelled, say

Item = TypeVar("Item")

LEAST_SHARE, SWAPPED_SHARE = 0.1, 0.7  # of the two sets that change places, and what moves from one to the other


def equal_shares(total: int, num_sets: int) -> list[int]:
    """A total in whole parts that differ by one at most, the larger ones first."""
    return [total // num_sets + (index < total % num_sets) for index in range(num_sets)]


def sharp(sets: Sequence[Iterator[Labelled]], total: int) -> Iterator[Labelled]:
    """Equal shares of each set, one set after another; one with fewer rows gives what it has."""
    for rows, share in zip(sets, equal_shares(total, len(sets)), strict=True):
        given, label = 0, ""
        for labelled in islice(rows, share):
            given, label = given + 1, labelled.label
            yield labelled
        if given < share:
            say(f"The stream's set {label} has {given} rows, and its share is {share}.")


def smooth_chances(progress: float, num_sets: int) -> list[float]:
    """How likely the next request is of each set.

    Of two sets the first gives way to the second. Of more, the first grows from a tenth to eight tenths, the second
    shrinks as much, and the others share a tenth.

    Source: Liu et al. 2023, "Online Speculative Decoding" (arXiv 2310.07177), as its code mixes two and three sets.

    Args:
        progress: Share of the stream that is behind.
        num_sets: At least one.
    """
    if num_sets == 1:
        return [1.0]
    if num_sets == 2:
        return [1 - progress, progress]
    moved = SWAPPED_SHARE * progress
    first, second = LEAST_SHARE + moved, LEAST_SHARE + SWAPPED_SHARE - moved
    return [first, second, *[(1 - first - second) / (num_sets - 2)] * (num_sets - 2)]


def smooth(sets: Sequence[Iterator[Labelled]], total: int, *, seed: int) -> Iterator[Labelled]:
    """At most so many requests, each of a set that is drawn; the chances of a set without rows go to the others."""
    draws = random.Random(seed)  # noqa: S311 - not for secrets
    upcoming = [next(rows, None) for rows in sets]
    for number in range(total):
        left = [index for index, labelled in enumerate(upcoming) if labelled is not None]
        if not left:
            return
        chances = smooth_chances(number / total, len(sets))
        chosen = drawn(left, [chances[index] for index in left], draws.random())
        labelled = upcoming[chosen]
        assert labelled is not None  # it is one of those left
        yield labelled
        upcoming[chosen] = next(sets[chosen], None)
        if upcoming[chosen] is None and len(left) > 1 and number + 1 < total:
            say(f"The stream's set {labelled.label} has no rows after {number + 1} of {total} requests; others follow.")


def drawn(items: Sequence[Item], chances: Sequence[float], draw: float) -> Item:
    """One of some items, by chances of any positive sum; by equal ones where all are zero.

    Args:
        items: At least one.
        chances: Of each.
        draw: Uniform in [0, 1).
    """
    bounds = list(accumulate(chances)) if sum(chances) else list(range(1, len(items) + 1))
    return next((item for item, bound in zip(items, bounds, strict=True) if draw * bounds[-1] < bound), items[-1])
