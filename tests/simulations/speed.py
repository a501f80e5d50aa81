"""What `widedraft benchmark` and live decoding decide, over recorded turns of a target against itself."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eval.benchmark import (
    DRAFT,
    LEAST_GROUPS,
    PLAIN,
    Method,
    Runs,
    best_of_each,
    columns,
    over_others,
    reached_precision,
)
from eval.cli import default_prompts
from eval.intervals import Resampling, paired_ratio_quotient
from tests.simulations.shares import Row, share_of
from tests.simulations.turns import Recording, Truth, draft_ways, drawn_times, lookup_ways

RESAMPLING = Resampling(confidence=0.95, num_resamples=2000, seed=17)
SPREADS = (0.0, 0.15)  # of the log of a prompt's own speed-up: none, and what drafts show
WAY_SPREAD = 0.03  # of what a num_speculative_tokens has for itself on a prompt, where prompts differ
UNEQUAL = ((12, 2), (8, 1))  # groups, and how many of them are ten times as long
UNEQUAL_SPREADS = (0.05, 0.15, 0.6)
LIVE_PROMPTS = (12, 16)  # the quickstart's, and eval.wall_clock_prompts
DRAFT_WAY = Method(DRAFT, 1, "draft")
PRECISE_SPREADS = (0.15, 0.35)
PRECISE = "benchmark --precision 0.1, best of 6 k: 1.00x decided"
LIVE = "scorecard, wall-clock: {:.2g}x decided"
NOTHING = (1.0,) * 6  # true speed-ups at ks 1 to 6
FASTER = (1.12, 1.18, 1.2, 1.18, 1.14, 1.1)
Interval = Sequence[float] | None
Decides = Callable[[Runs], bool]


@dataclass(frozen=True)
class Case:
    """Something that a page decides.

    Attributes:
        what: In the words of the table.
        speedups: In truth, of every way.
        decides: Whether the page of some times says it.
        level: How often it may; None where it is true.
    """

    what: str
    speedups: Mapping[Method, float]
    decides: Decides
    level: float | None


def is_called(interval: Interval) -> bool:
    """Whether an interval says faster or slower."""
    return interval is not None and not interval[0] <= 1 <= interval[1]


def single_way_is_called(times: Runs) -> bool:
    """The row of one way, which was not picked."""
    return is_called(
        paired_ratio_quotient(columns(times, Method(PLAIN)), columns(times, DRAFT_WAY), RESAMPLING).interval
    )


def any_best_is_called(times: Runs) -> bool:
    """A sentence of a draft, or of looking up, at its best."""
    return any(is_called(row.speedup.interval) for row in best_of_each(times, RESAMPLING))


def draft_is_faster(times: Runs) -> bool:
    """The draft's sentence at its best says faster."""
    interval = best_of_each(times, RESAMPLING)[0].speedup.interval
    return interval is not None and interval[0] > 1


def a_draft_is_ahead(times: Runs) -> bool:
    """The fastest draft is said to be faster than another."""
    behind = over_others(best_of_each(times, RESAMPLING), times, RESAMPLING)
    return any(row.speedup.interval is not None and row.speedup.interval[0] > 1 for row in behind)


def three_drafts(*speedups: float) -> dict[Method, float]:
    """Drafts at ks 1 to 3, each worth as much at all of them."""
    drafts = [draft_ways((value,) * 3, name) for name, value in zip("abc", speedups, strict=True)]
    return {way: value for draft in drafts for way, value in draft.items()}


CASES = (
    Case("benchmark, one method: 1.00x decided", {DRAFT_WAY: 1.0}, single_way_is_called, 0.05),
    Case("benchmark, one method: 1.2x decided", {DRAFT_WAY: 1.2}, single_way_is_called, None),
    Case(
        "benchmark, draft and lookup, best of 6 k: 1.00x decided",
        {**draft_ways(NOTHING), **lookup_ways(NOTHING)},
        any_best_is_called,
        0.05,
    ),
    Case(
        "benchmark, draft, best of 6 k: 1.2x found",
        {**draft_ways(FASTER), **lookup_ways(NOTHING)},
        draft_is_faster,
        None,
    ),
    Case("benchmark, three equal drafts: one reported fastest", three_drafts(1, 1, 1), a_draft_is_ahead, 0.05),
    Case("benchmark, drafts of 1, 1 and 1.2: one reported faster", three_drafts(1, 1, 1.2), a_draft_is_ahead, None),
)


def default_groups(batch: int) -> int:
    """Of prompts, where --num-prompts is not given."""
    return default_prompts(batch) // batch


def speed_rows(recordings: Sequence[Recording], runs: int, *, seed: int) -> Iterator[Row]:
    """What the page says at the default sizes, at every recorded batch."""
    for case in CASES:
        for recording in recordings:
            for spread in SPREADS:
                groups = default_groups(recording.batch)
                size = f"batch {recording.batch}, {groups} groups of {'varying' if spread else 'equal'} prompts"
                yield case_row(case, recording, spread, groups, size, runs=runs, seed=seed)


def unequal_rows(recordings: Sequence[Recording], runs: int, *, seed: int) -> Iterator[Row]:
    """What the page says where some prompts are ten times as long as the others."""
    [recording] = [recording for recording in recordings if recording.batch == 1]
    for case in CASES[:5]:
        for groups, long in UNEQUAL:
            for spread in UNEQUAL_SPREADS:
                size = f"{groups} groups, {long} ten times as long, log sd {spread:g}"
                yield case_row(case, recording, spread, groups, size, runs=runs, seed=seed, long=long)


def precise_rows(recordings: Sequence[Recording], runs: int, *, seed: int) -> Iterator[Row]:
    """What the page says where --precision 0.1 stopped after some of 96 prompts."""
    [recording] = [recording for recording in recordings if recording.batch == 1]
    for spread in PRECISE_SPREADS:
        truth = Truth(draft_ways(NOTHING), spread, WAY_SPREAD)

        def decides(rng: np.random.Generator, truth: Truth = truth) -> bool:
            times = drawn_times(recording, truth, groups=96, repeats=1, rng=rng)
            groups = LEAST_GROUPS
            while (reached_precision(first(times, groups), RESAMPLING) or 0) > 0.1 and groups < 96:
                groups += 1
            return any_best_is_called(first(times, groups))

        share = share_of(runs, decides, seed=seed)
        yield Row(PRECISE, f"12 to 96 prompts, log sd {spread:g}", holds=False, nominal=0.05, share=share, runs=runs)


def first(times: Runs, groups: int) -> Runs:
    return {way: [{index: repeat[index] for index in range(groups)} for repeat in rows] for way, rows in times.items()}


def live_rows(recordings: Sequence[Recording], runs: int, *, seed: int) -> Iterator[Row]:
    """What a scorecard says of its live decoding."""
    [recording] = [recording for recording in recordings if recording.batch == 1]
    for prompts in LIVE_PROMPTS:
        for speedup, level in ((1.0, 0.05), (1.2, None)):
            case = Case(LIVE.format(speedup), {DRAFT_WAY: speedup}, single_way_is_called, level)
            yield case_row(case, recording, SPREADS[-1], prompts, f"{prompts} varying prompts", runs=runs, seed=seed)


def case_row(
    case: Case, recording: Recording, spread: float, groups: int, size: str, *, runs: int, seed: int, long: int = 0
) -> Row:
    """The share of runs in which one case is decided."""
    truth = Truth(dict(case.speedups), spread, WAY_SPREAD if spread else 0.0)

    def decides(rng: np.random.Generator) -> bool:
        return case.decides(drawn_times(recording, truth, groups=groups, repeats=1, rng=rng, long=long))

    return Row(case.what, size, holds=False, nominal=case.level, share=share_of(runs, decides, seed=seed), runs=runs)
