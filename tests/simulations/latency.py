"""Intervals of step times, over a recorded series of real steps: of percentiles, of ratios, of what they predict.

The truth is what the whole series gives. A simulated measurement takes as many repetitions as the command does: either
scattered over the series, as if they were independent, which is what intervals take for granted; or one stretch of it,
as a command does, whose machine may run faster or slower meanwhile than on the whole.

Shape suffixes used in this file:
    R = repetitions
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from architectures.shapes import Shape
from benchmarks.equal_shapes import EqualShape
from eval.intervals import Resampling, percentile_bounds
from eval.latency import Kind, Setting, Timed, scored_latency
from eval.scorecard_schema import TARGET, ScoredLatency
from tests.simulations.shares import Row, share_of

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

RESAMPLING = Resampling(confidence=0.95, num_resamples=2000, seed=17)
PERCENTILES = ((50, 10), (50, 30), (50, 40), (10, 40), (90, 40), (50, 100), (99, 200))  # each at so many repetitions


@dataclass(frozen=True)
class Series:
    """Seconds of every kind of step, all of one repetition at one index; and the shapes that were timed."""

    seconds: Mapping[Kind, Array]
    shapes: tuple[EqualShape, ...]

    @property
    def repeats(self) -> int:
        return len(self.seconds[Kind(TARGET, 1)])

    def taken(self, indices: Indices) -> "Series":
        """The same repetitions of every kind of step."""
        return Series({kind: seconds[indices] for kind, seconds in self.seconds.items()}, self.shapes)

    def latency(self) -> ScoredLatency:
        """What a command would hold of these steps."""
        seconds = {kind: values.tolist() for kind, values in self.seconds.items()}
        return scored_latency(Timed(seconds, 10, is_settled=True), Setting([0] * 128), RESAMPLING)


def read_series(path: Path) -> Series:
    """The file that `widedraft latency --shapes --out` wrote, or as much of it as is kept here."""
    record = json.loads(path.read_text(encoding="utf-8"))
    steps = record["cells"][0]["together"]["steps"]
    return Series(
        {Kind(step["model"], step["tokens"]): np.array(step["each_ms"]) / 1000 for step in steps},
        tuple(EqualShape(shape["size"], shape_of(shape)) for shape in record["shapes"]),
    )


def shape_of(recorded: dict[str, Any]) -> Shape:
    """A shape of a file, whose younger keys have the value that nobody said before there were such."""
    known = {"head_vocab": 0, **recorded}
    return Shape(**{field.name: known[field.name] for field in fields(Shape) if field.name in known})


def scattered(total: int, repeats: int, rng: np.random.Generator) -> Indices:
    """Repetitions from anywhere."""
    return rng.integers(total, size=repeats)


def stretch(total: int, repeats: int, rng: np.random.Generator) -> Indices:
    """Repetitions one after the other."""
    return rng.integers(total - repeats + 1) + np.arange(repeats)


DRAWS: dict[str, Callable[[int, int, np.random.Generator], Indices]] = {
    "independent": scattered,
    "consecutive": stretch,
}


def latency_rows(series: Series, runs: int, *, seed: int) -> Iterator[Row]:
    """Percentiles of the target's step."""
    for percentile, repeats in PERCENTILES:
        truth = float(np.percentile(series.seconds[Kind(TARGET, 1)], percentile))

        def holds(taken: Series, *, percentile: int = percentile, truth: float = truth) -> bool:
            values = taken.seconds[Kind(TARGET, 1)].tolist()
            low, high = percentile_bounds(values, percentile / 100, RESAMPLING.confidence)
            return (low is None or low <= truth) and (high is None or truth <= high)

        yield from rows_of(f"p{percentile}", holds, series, repeats, runs=runs, seed=seed)


def rows_of(
    what: str, holds: Callable[[Series], bool], series: Series, repeats: int, *, runs: int, seed: int
) -> Iterator[Row]:
    """How often an interval holds, for repetitions drawn in either way."""
    for name, draw in DRAWS.items():
        share = share_of(
            runs, lambda rng, draw=draw: holds(series.taken(draw(series.repeats, repeats, rng))), seed=seed
        )
        size = f"{what}, {repeats} repetitions, {name}"
        yield Row("step time, percentile", size, holds=True, nominal=0.95, share=share, runs=runs)
