"""What a simulation finds: a share of runs, beside what it should be."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        what: Which interval or decision.
        size: Of what it is made.
        holds: Whether the share is of intervals that hold the truth; else it is of runs that decide.
        nominal: What the share should be; None where it is the higher the better.
        share: Found.
        runs: Simulated.
    """

    what: str
    size: str
    holds: bool
    nominal: float | None
    share: float
    runs: int

    @property
    def error(self) -> float:
        """Standard error of the share."""
        return math.sqrt(max(self.share * (1 - self.share), 1 / self.runs) / self.runs)


def share_of(runs: int, is_so: Callable[[np.random.Generator], bool], *, seed: int) -> float:
    """In how many of so many runs, each with random numbers of its own, something is so."""
    return float(np.mean([is_so(np.random.default_rng((seed, run))) for run in range(runs)]))


def is_inside(truth: float, interval: Iterable[float] | None) -> bool:
    """Whether an interval holds a value; there must be one."""
    assert interval is not None
    low, high = interval
    return low <= truth <= high
