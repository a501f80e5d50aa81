"""Decoding in turns: every group of prompts by every way, in an order drawn anew, again and again.

Steps are timed between the turns, so that what is predicted from them and what is measured meet the same machine.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from eval.decoding.texts import row_seed
from eval.speed.ways import Run, Taken, Way

Prompts = Sequence[Sequence[int]]
Seconds = Callable[[Taken], float | None]
Times = dict[Way, list[dict[int, Taken]]]  # by way, for each repetition, by the index of the group


def groups_of(prompts: Prompts, batch: int) -> list[Prompts]:
    """The prompts in groups that are decoded together; the last one may be smaller."""
    return [prompts[start : start + batch] for start in range(0, len(prompts), batch)]


def warm_up(ways: Mapping[Way, Run], groups: Sequence[Prompts]) -> None:
    """Decode some groups by every way, untimed."""
    for index, group in enumerate(groups):
        for run in ways.values():
            run(group, row_seeds_of(groups, index, 0))


def row_seeds_of(groups: Sequence[Prompts], index: int, repeat: int) -> list[int]:
    """A seed for each prompt of a group: its own in every repetition, and the same for all ways and any batch."""
    first = sum(len(group) for group in groups[:index])
    return [row_seed(first + row, repeat) for row in range(len(groups[index]))]


def take_turns(
    ways: Mapping[Way, Run],
    groups: Sequence[Prompts],
    turns: Iterable[tuple[int, int]],
    rng: np.random.Generator,
    *,
    times: Times,
) -> Iterator[None]:
    """Find what every way takes for every group, in every repetition; stop after each turn.

    Args:
        ways: How to decode.
        groups: Prompts that are decoded together.
        turns: Repetition and index of the group, of each turn; every way decodes the group then.
        rng: Draws the order of the ways, for each turn.
        times: Where it is kept; filled when the last turn has been taken.
    """
    names = list(ways)
    times.update({way: [] for way in ways})
    for repeat, index in turns:
        for chosen in rng.permutation(len(names)):
            way = names[chosen]
            if len(times[way]) <= repeat:
                times[way].append({})
            times[way][repeat][index] = ways[way](groups[index], row_seeds_of(groups, index, repeat))
        yield


def columns(rows: Sequence[Mapping[int, Taken]], seconds: Seconds) -> tuple[list[float], list[float]] | None:
    """Seconds and tokens of every group, over all repetitions; None where such seconds are not told."""
    units = [[row[index] for row in rows] for index in sorted(rows[0])]
    taken = [[seconds(batch) for batch in unit] for unit in units]
    if any(value is None for unit in taken for value in unit):
        return None
    return [sum(value or 0 for value in unit) for unit in taken], [
        sum(batch.tokens for batch in unit) for unit in units
    ]


def whole_seconds(taken: Taken) -> float:
    """The reading of the prompt included."""
    return taken.whole_s
