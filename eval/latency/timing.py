"""Timing of many kinds of step together, so that a drift of the machine meets all of them alike.

One repetition runs every kind of step once, in an order drawn anew. Those before the times settle do not count.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from eval.acceptance.estimates import Estimate
from eval.acceptance.intervals import Array, percentile_bounds
from eval.scorecard_schema import Percentile, StepTime

Kind = TypeVar("Kind", bound=Hashable)
Step = Callable[[], float]  # does its work once and returns the seconds it took

WARM_UP_WINDOW = 5  # repetitions whose median is compared with that of as many before
WARM_UP_LIMIT = 20  # repetitions after which timing starts, stable or not
STABLE_CHANGE = 0.02  # relative change of the median below which warm-up ends
RARE, RARE_REPEATS = 99, 200  # a percentile that says nothing of fewer repetitions: two of them lie beyond it


@dataclass(frozen=True)
class Timed(Generic[Kind]):
    """What was measured together.

    Attributes:
        seconds: Of every kind of step, one for each repetition.
        warm_up_repeats: Untimed repetitions before them.
        is_settled: Whether warm-up ended because the times had settled.
    """

    seconds: Mapping[Kind, Sequence[float]]
    warm_up_repeats: int
    is_settled: bool

    def times(self, confidence: float) -> dict[Kind, StepTime]:
        """Percentiles and their bounds, of every kind."""
        return {kind: summarise(values, confidence) for kind, values in self.seconds.items()}


def time_together(
    steps: Mapping[Kind, Step],
    rng: np.random.Generator,
    repetitions: Iterable[object],
    *,
    most_warm_ups: int | None = None,
) -> Timed[Kind]:
    """Time steps in turn, as decoding takes them: no model finds its weights warmer than it would there.

    Args:
        steps: By kind.
        rng: Draws the order of every repetition.
        repetitions: One item for each that counts.
        most_warm_ups: Repetitions after which timing starts, stable or not; None for WARM_UP_LIMIT.
    """
    warm_up_repeats, is_settled = warm_up(lambda: sum(run_once(steps, rng).values()), most=most_warm_ups)
    seconds: dict[Kind, list[float]] = {kind: [] for kind in steps}
    for _ in repetitions:
        for kind, elapsed_s in run_once(steps, rng).items():
            seconds[kind].append(elapsed_s)
    return Timed(seconds, warm_up_repeats, is_settled)


def time_alone(
    steps: Mapping[Kind, Step], rng: np.random.Generator, repeats: int, *, after_each: Callable[[], None]
) -> Timed[Kind]:
    """Time each kind of step by itself, again and again: what a cache of the processor holds stays there.

    Args:
        steps: By kind.
        rng: Draws their order.
        repeats: That count.
        after_each: Called when a kind is done.
    """
    seconds: dict[Kind, list[float]] = {kind: [] for kind in steps}
    warm_ups = []
    for kind in shuffled(steps, rng):
        warm_ups.append(warm_up(steps[kind]))
        seconds[kind] = [steps[kind]() for _ in range(repeats)]
        after_each()
    return Timed(seconds, max(count for count, _ in warm_ups), all(is_settled for _, is_settled in warm_ups))


def run_once(steps: Mapping[Kind, Step], rng: np.random.Generator) -> dict[Kind, float]:
    """Seconds of every kind of step, run in random order."""
    return {kind: steps[kind]() for kind in shuffled(steps, rng)}


def shuffled(steps: Mapping[Kind, Step], rng: np.random.Generator) -> list[Kind]:
    """The kinds in an order of their own."""
    kinds = list(steps)
    return [kinds[index] for index in rng.permutation(len(kinds))]


def warm_up(run: Step, *, most: int | None = None) -> tuple[int, bool]:
    """Run until the time it takes settles, WARM_UP_LIMIT times or `most`; returns how often, and whether it did."""
    most = WARM_UP_LIMIT if most is None else most
    totals_s: list[float] = []
    while len(totals_s) < most:
        totals_s.append(run())
        if has_settled(totals_s):
            return len(totals_s), True
    return len(totals_s), False


def has_settled(totals_s: Sequence[float]) -> bool:
    """Whether the median of the last window differs by little from that of the window before."""
    if len(totals_s) < 2 * WARM_UP_WINDOW:
        return False
    before = np.median(totals_s[-2 * WARM_UP_WINDOW : -WARM_UP_WINDOW])
    return bool(abs(np.median(totals_s[-WARM_UP_WINDOW:]) / before - 1) < STABLE_CHANGE)


def summarise(values_s: Sequence[float], confidence: float) -> StepTime:
    """Percentiles in milliseconds, each with bounds that hold whatever the law of the times is."""
    values_ms = 1000 * np.asarray(values_s)
    low, high = percentile_bounds(values_ms, 0.5, confidence)
    return StepTime(
        p10_ms=percentile(values_ms, 10, confidence),
        p50_ms=Estimate(float(np.median(values_ms)), None if low is None or high is None else (low, high)),
        p90_ms=percentile(values_ms, 90, confidence),
        p99_ms=percentile(values_ms, RARE, confidence) if len(values_ms) >= RARE_REPEATS else None,
    )


def percentile(values_ms: Array, percent: int, confidence: float) -> Percentile:
    """One of them; without bounds where no repetition is surely beyond it on either side."""
    bounds_ms = percentile_bounds(values_ms, percent / 100, confidence)
    return Percentile(float(np.percentile(values_ms, percent)), None if bounds_ms == (None, None) else bounds_ms)
