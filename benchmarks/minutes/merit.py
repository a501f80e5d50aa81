"""What a cell is worth: the speed that its acceptance promises, by step times of all cells of its shape. Pure.

Shape suffixes used in this file:
    N = draws of the prompts
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from benchmarks.minutes.cells import Cell
from benchmarks.minutes.kept import kept_row, kept_times
from benchmarks.minutes.record import Finished
from eval.acceptance.estimates import Resampling
from eval.acceptance.intervals import percentile_interval
from eval.acceptance.speedup import StepTimes
from eval.predictions.promise import promise
from eval.predictions.ranking import Array, drawn_speedups

Shape = tuple[int, int | None]  # layers and ids, which decide how long a step takes
CONFIDENCE, NUM_RESAMPLES = 0.95, 2000


@dataclass(frozen=True)
class Worth:
    """A predicted speed over that of the target alone.

    Attributes:
        value: Of all prompts.
        drawn_N: In each draw of the prompts.
        num_prompts: That were drawn from, of the smallest set.
        lookahead: At which it is best; None of several speeds together.
    """

    value: float
    drawn_N: Array
    num_prompts: int
    lookahead: int | None = None

    @property
    def interval(self) -> tuple[float, float]:
        """Over prompts; the seed, and how sure the step times are, are not in it."""
        low, high = percentile_interval(self.drawn_N, CONFIDENCE, num_units=self.num_prompts)
        return min(low, self.value), max(high, self.value)


def shape_of(cell: Cell) -> Shape:
    """Whose steps take equally long."""
    return cell.configuration.layers, cell.configuration.vocabulary


def steps_by_shape(results: Sequence[Finished]) -> dict[Shape, StepTimes]:
    """Step times in steps of the target: medians, since what a cell learned changes none of them.

    A draft's are over all cells of its shape, a verification's over all cells, whose target is the same.
    """
    by_shape: dict[Shape, list[StepTimes]] = {}
    for result in results:
        by_shape.setdefault(shape_of(result.cell), []).append(in_target_steps(kept_times(result.latency)))
    verify = medians([times.verify_s for group in by_shape.values() for times in group])
    return {
        shape: StepTimes(
            1.0,
            median(step_times.draft_s for step_times in group),
            median(step_times.draft_two_s for step_times in group),
            verify,
        )
        for shape, group in by_shape.items()
    }


def in_target_steps(times: StepTimes) -> StepTimes:
    """The same, one step of the target being 1: cells were timed one after the other, on a machine that drifts."""
    unit = times.target_s
    verify = {lookahead: seconds / unit for lookahead, seconds in times.verify_s.items()}
    return StepTimes(1.0, times.draft_s / unit, times.draft_two_s / unit, verify)


def medians(tables: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The median at each lookahead."""
    return {lookahead: median(table[lookahead] for table in tables) for lookahead in tables[0]}


def worths(result: Finished, steps: Mapping[Shape, StepTimes]) -> dict[tuple[str, float], Worth]:
    """The predicted speed at the best lookahead, by set of answers and temperature."""
    times, by_set = steps[shape_of(result.cell)], {}
    for row in result.acceptance:
        kept = kept_row(row)
        lookahead, value = promise(kept.lookahead, times)
        resampling = Resampling(CONFIDENCE, NUM_RESAMPLES, seed_of(row["set"]))
        drawn_N = drawn_speedups(kept, kept.by_prompt, lookahead, [times] * NUM_RESAMPLES, resampling)
        by_set[row["set"], row["temperature"]] = Worth(value, drawn_N, len(kept.by_prompt.tokens), lookahead)
    return by_set


def seed_of(name: str) -> int:
    """Of a set's draws: prompts of two sets are drawn apart, those of two temperatures of one set together."""
    return sum(name.encode())


def merit(cells: Sequence[Finished], steps: Mapping[Shape, StepTimes]) -> Worth:
    """One figure to rank by: the geometric mean of the speeds on all sets, at all temperatures, of all seeds."""
    every = [worth for result in cells for worth in worths(result, steps).values()]
    return Worth(
        float(np.exp(np.mean([np.log(worth.value) for worth in every]))),
        np.exp(np.mean([np.log(worth.drawn_N) for worth in every], axis=0)),
        min(worth.num_prompts for worth in every),
    )


def ranked(cells: Sequence[Cell], results: Sequence[Finished]) -> list[Cell]:
    """The cells of a stage, the best first; all of them have finished.

    Step times are of these cells alone: what is made later must not change who went on.
    """
    by_name = {result.cell.name: result for result in results}
    steps = steps_by_shape([by_name[cell.name] for cell in cells])
    return sorted(cells, key=lambda cell: -merit([by_name[cell.name]], steps).value)


def is_behind(worth: Worth, best: Worth) -> bool:
    """Whether a figure is surely below the best one, on the same draws of the prompts."""
    _, high = percentile_interval(worth.drawn_N / best.drawn_N, CONFIDENCE, num_units=worth.num_prompts)
    return bool(high < 1)
