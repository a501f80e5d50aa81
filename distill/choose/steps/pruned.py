"""Which candidates no training is worth, by step times alone. Pure; no torch.

A shape is out by one of these rules, in this order:

1. Its step takes longer than was allowed, at the place that decides.
2. Of each depth and head the widest that fits stays, where that was asked for.
3. At no place could it pay even if every token were kept.
4. It is dominated: another candidate has no less of anything, and at no place a slower step, in 39 of 40 draws of the
   times. It loses unless the smaller of two drafts is the one that is right more often, which nothing suggests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from architectures.shapes.section import SIZES
from architectures.shapes.shape import Shape
from distill.choose.shapes.candidates import Candidate, widest
from distill.choose.shapes.left_out import LeftOut
from eval.acceptance.estimates import Resampling
from eval.scorecard_schema import ScoredLatency
from eval.speedup import Prospect, drawn_times, prospect, step_times

SURE = 0.975  # of draws: with such a share a rival is none either (distill/choose/trainings/in_play.py)


@dataclass(frozen=True)
class Bounds:
    """What candidates may take.

    Attributes:
        most_milliseconds: A step of one token, at the place that decides; None for no bound.
        is_widest: Whether the widest alone stays of those that fit.
        by_size: Whether a larger draft is taken to be right more often; not where acceptance is given.
    """

    most_milliseconds: float | None = None
    is_widest: bool = False
    by_size: bool = True


@dataclass(frozen=True)
class Pruned:
    """What step times leave of the candidates.

    Attributes:
        kept: Those that are worth a training.
        left_out: The others, with the reason of each.
        prospects: Of all that were timed, by name, at the place that decides.
    """

    kept: list[Candidate]
    left_out: list[LeftOut]
    prospects: Mapping[str, Prospect]


def pruned(
    candidates: Sequence[Candidate], timed: Sequence[ScoredLatency], bounds: Bounds, resampling: Resampling
) -> Pruned:
    """The candidates, by the rules above.

    Args:
        candidates: All that were timed.
        timed: Their steps at each place; the first decides.
        bounds: What they may take.
        resampling: How step times are drawn.
    """
    prospects = [
        {name: prospect(steps, latency.batch) for name, steps in step_times(latency).items()} for latency in timed
    ]
    slow = too_slow(candidates, timed[0], bounds.most_milliseconds)
    kept = without(candidates, slow)
    narrow = widest(kept)[1] if bounds.is_widest else []
    kept = without(kept, narrow)
    hopeless = [
        LeftOut(each.name, "cannot pay", "no acceptance makes it pay here")
        for each in kept
        if all(of_place[each.name].least_alpha is None for of_place in prospects)
    ]
    kept = without(kept, hopeless)
    lesser = dominated(kept, timed, resampling) if bounds.by_size else []
    return Pruned(without(kept, lesser), [*slow, *narrow, *hopeless, *lesser], prospects[0])


def without(candidates: Sequence[Candidate], left_out: Sequence[LeftOut]) -> list[Candidate]:
    out = {each.candidate for each in left_out}
    return [each for each in candidates if each.name not in out]


def too_slow(candidates: Sequence[Candidate], latency: ScoredLatency, most_milliseconds: float | None) -> list[LeftOut]:
    """Those whose step takes longer than allowed."""
    milliseconds = {each.draft: each.one_token.median_ms for each in latency.drafts}
    return [
        LeftOut(each.name, "too slow", f"a step takes {milliseconds[each.name]:.2f} ms, of {most_milliseconds:g}")
        for each in candidates
        if most_milliseconds is not None and milliseconds[each.name] > most_milliseconds
    ]


def dominated(candidates: Sequence[Candidate], timed: Sequence[ScoredLatency], resampling: Resampling) -> list[LeftOut]:
    """Those that are contained in another one whose steps are surely no slower, at every place."""
    draws = [drawn_steps(latency, resampling) for latency in timed]
    found = []
    for small in candidates:
        larger = [each for each in candidates if contains(each.shape, small.shape)]
        better = [each for each in larger if is_no_slower(each.name, small.name, draws)]
        if better:
            best = max(better, key=lambda each: each.shape.parameters())
            found.append(LeftOut(small.name, "dominated", f"{best.name} has no less of anything and is no slower"))
    return found


def contains(large: Shape, small: Shape) -> bool:
    """Whether one shape has no less of anything than another, and more of something."""
    parts = (*SIZES, "head_rows")
    return large != small and all(getattr(large, part) >= getattr(small, part) for part in parts)


def drawn_steps(latency: ScoredLatency, resampling: Resampling) -> dict[str, np.ndarray]:
    """Seconds of a draft's step of one token and of two, one row for each draw."""
    return {
        name: np.array([(each.draft_s, each.draft_two_s) for each in draws])
        for name, draws in drawn_times(latency, resampling).items()
    }


def is_no_slower(one: str, other: str, draws: Sequence[Mapping[str, np.ndarray]]) -> bool:
    """Whether all steps of one take no longer than those of another, nearly always and everywhere."""
    return all(float((of_place[one] <= of_place[other]).all(axis=1).mean()) >= SURE for of_place in draws)
