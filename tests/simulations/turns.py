"""Runs of `widedraft benchmark` whose truth is known, made of recorded turns of a target against itself.

benchmarks/self_speed.py decodes each group of prompts several times over by one and the same way, so its copies differ
by noise and drift alone. A simulated run takes consecutive turns of the recording, from a place drawn at random; in
every turn it takes one copy for the target alone and others for the ways to compare. Seconds of a way are divided by
what it is worth in truth, on the mean and on the prompts at hand.

Shape suffixes used in this file:
    T = recorded turns in the order taken, C = copies, G = groups, R = repetitions, W = ways, B = prompts of a group
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eval.benchmark import DRAFT, LOOKUP, PLAIN, Method, Runs, TimedRun
from tests.simulations.prompts import LONGER

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Recording:
    """Turns at one batch: seconds of every copy, and tokens of the group."""

    batch: int
    seconds_TC: Array
    tokens_T: Array


@dataclass(frozen=True)
class Truth:
    """What ways are worth.

    Attributes:
        speedups: Of each way, pooled over all prompts there could be.
        prompt_spread: Standard deviation of the log of a prompt's own speed-up; ways of a draft share it.
        way_spread: The same of what a way has for itself.
    """

    speedups: dict[Method, float]
    prompt_spread: float = 0.0
    way_spread: float = 0.0


def read_recordings(path: Path) -> list[Recording]:
    """Every batch of a file of benchmarks/self_speed.py."""
    batches = json.loads(path.read_text(encoding="utf-8"))["batches"]
    return [
        Recording(
            int(batch),
            np.array([turn["seconds"] for turn in turns]),
            np.array([turn["tokens"][0] for turn in turns], dtype=np.float64),
        )
        for batch, turns in batches.items()
    ]


def drawn_times(
    recording: Recording, truth: Truth, *, groups: int, repeats: int, rng: np.random.Generator, long: int = 0
) -> Runs:
    """What one run took: the target alone and every way of the truth; so many groups are ten times as long."""
    ways = list(truth.speedups)
    worth_WG = drawn_worth(ways, truth, recording.batch, groups, rng)
    start = rng.integers(len(recording.tokens_T))
    times: Runs = {way: [{} for _ in range(repeats)] for way in (Method(PLAIN), *ways)}
    for repeat in range(repeats):
        for group in range(groups):
            turn = (start + repeat * groups + group) % len(recording.tokens_T)
            alone_s, *ways_s = drawn_copies(recording.seconds_TC[turn], 1 + len(ways), rng)
            length = LONGER if group < long else 1
            tokens, alone_s = length * int(recording.tokens_T[turn]), length * alone_s
            times[Method(PLAIN)][repeat][group] = whole(tokens, alone_s)
            for way, seconds, worth in zip(ways, ways_s, worth_WG[:, group], strict=True):
                times[way][repeat][group] = whole(tokens, length * seconds / worth)
    return times


def whole(tokens: int, seconds: float) -> TimedRun:
    """Seconds of everything, none of them told apart."""
    return TimedRun(tokens, seconds)


def drawn_copies(seconds_C: Array, count: int, rng: np.random.Generator) -> Array:
    """Different copies of one turn, as far as there are so many; then the others over again, but never the first."""
    order = rng.permutation(len(seconds_C))
    others = np.resize(order[1:], count - 1)
    return seconds_C[np.concatenate([order[:1], others])]


def drawn_worth(ways: Sequence[Method], truth: Truth, batch: int, groups: int, rng: np.random.Generator) -> Array:
    """worth_WG of every group: the mean time of its prompts, each with a speed-up of its own. Right on the mean."""
    kinds = list(dict.fromkeys((way.kind, way.draft) for way in ways))
    shared = {kind: spread_factors(truth.prompt_spread, (groups, batch), rng) for kind in kinds}
    rows = [
        (shared[way.kind, way.draft] * spread_factors(truth.way_spread, (groups, batch), rng)).mean(axis=1)
        for way in ways
    ]
    return np.array([truth.speedups[way] / row for way, row in zip(ways, rows, strict=True)])


def spread_factors(spread: float, shape: tuple[int, int], rng: np.random.Generator) -> Array:
    """Log-normal factors of time whose mean is 1."""
    return np.exp(rng.normal(-(spread**2) / 2, spread, shape)) if spread else np.ones(shape)


def draft_ways(speedups: Sequence[float], draft: str = "draft") -> dict[Method, float]:
    """A draft at ks 1, 2, ..., each with what it is worth."""
    return {Method(DRAFT, k, draft): value for k, value in enumerate(speedups, start=1)}


def lookup_ways(speedups: Sequence[float]) -> dict[Method, float]:
    """Looking up n-grams at ks 1, 2, ..., each with what it is worth."""
    return {Method(LOOKUP, k): value for k, value in enumerate(speedups, start=1)}
