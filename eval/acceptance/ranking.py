"""Which of several drafts is the fastest, and how surely: step times and acceptance, with the doubt of both.

Prompts are resampled, the same for all drafts, and step times drawn from the intervals of their medians; in each such
draw every draft is worth its speed at the lookahead that is best for it. Pure: it reads a scorecard of all of them.

Shape suffixes used in this file:
    P = prompts, N = draws
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.acceptance.estimates import Resampling, resampling_weights
from eval.acceptance.intervals import least_units, percentile_interval
from eval.acceptance.promise import full_rate, promise
from eval.acceptance.speedup import (
    StepTimes,
    best_lookahead,
    break_even_alpha,
    iid_speedup,
    predicted_speedup,
    root_in_unit,
)

Record = dict[str, Any]
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Ranked:
    """One draft among others.

    Attributes:
        draft: Its name.
        lookahead: At which it promises most.
        speedup: Predicted, of decoding, against the target alone.
        interval: Of it; None where too few prompts or repetitions tell how sure it is.
        tokens_per_s: What that comes to here.
        first_share: In how many of the draws it is the fastest.
    """

    draft: str
    lookahead: int
    speedup: float
    interval: tuple[float, float] | None
    tokens_per_s: float
    first_share: float


def ranking(scorecard: Record, temperature: float) -> list[Ranked]:
    """Every draft of a scorecard, the fastest first.

    Args:
        scorecard: Of one target; every draft was replayed and timed.
        temperature: Whose acceptance counts; one of the scorecard's.
    """
    resampling = resampling_of(scorecard)
    rows = {row["draft"]: row for row in scorecard["acceptance"] if row["temperature"] == temperature}
    steps, draws = step_times(scorecard["latency"]), drawn_times(scorecard["latency"], resampling)
    chosen = {name: promise(row, steps[name]) for name, row in rows.items()}
    drawn = {name: drawn_speedups(row, chosen[name][0], draws[name], resampling) for name, row in rows.items()}
    num_prompts = min(len(row["by_prompt"]["tokens"]) for row in rows.values())
    intervals = {
        name: drawn_interval(drawn_N, scorecard["latency"], resampling, num_prompts) for name, drawn_N in drawn.items()
    }
    return in_order(chosen, drawn, intervals, steps)


def predicted_interval(scorecard: Record, forecast: Record) -> tuple[float, float] | None:
    """How far the doubt of acceptance and of step times moves the speed that is predicted of a draft at its best.

    Args:
        scorecard: The whole.
        forecast: One of its sections of `speedup`.

    Returns:
        None where a scorecard does not hold the sums of every prompt, or holds too few prompts or repetitions.
    """
    named = (forecast["draft"], forecast["temperature"])
    [row] = [row for row in scorecard["acceptance"] if (row["draft"], row["temperature"]) == named]
    if row.get("by_prompt") is None:
        return None
    resampling = resampling_of(scorecard)
    times = drawn_times(scorecard["latency"], resampling)[row["draft"]]
    drawn_N = drawn_speedups(row, forecast["best_lookahead"], times, resampling)
    return drawn_interval(drawn_N, scorecard["latency"], resampling, len(row["by_prompt"]["tokens"]))


def drawn_interval(
    drawn_N: Array, latency: Record, resampling: Resampling, num_prompts: int | None
) -> tuple[float, float] | None:
    """What lies between the tails of drawn speeds; None where prompts or repetitions are too few to know them.

    Args:
        drawn_N: Speed-ups, one for each draw.
        latency: Whose step times were drawn.
        resampling: How.
        num_prompts: That were drawn from; None where acceptance was given.
    """
    few_prompts = num_prompts is not None and num_prompts < least_units(resampling.confidence)
    if few_prompts or not all(step["interval_ms"] for step in steps_of(latency)):
        return None
    return percentile_interval(drawn_N, resampling.confidence, num_units=num_prompts)


def steps_of(latency: Record) -> list[Record]:
    """Every kind of step, of the target and of all drafts."""
    of_drafts = [one[kind] for one in latency["drafts"] for kind in ("one_token", "two_tokens")]
    return [latency["target"], *latency["verify"], *of_drafts]


def ranking_of_alphas(latency: Record, alphas: Mapping[str, float], resampling: Resampling) -> list[Ranked]:
    """Every draft whose tokens are kept with a known chance, independently; the fastest first.

    The doubt is that of step times alone.

    Args:
        latency: Step times of all of them, as a scorecard holds them.
        alphas: Chance of each.
        resampling: How many draws, and the coverage of intervals.
    """
    steps, draws = step_times(latency), drawn_times(latency, resampling)
    chosen = {name: iid_promise(alpha, steps[name]) for name, alpha in alphas.items()}
    drawn = {
        name: np.array([iid_speedup(alpha, chosen[name][0], each) for each in draws[name]])
        for name, alpha in alphas.items()
    }
    intervals = {name: drawn_interval(drawn_N, latency, resampling, None) for name, drawn_N in drawn.items()}
    return in_order(chosen, drawn, intervals, steps)


def iid_promise(alpha: float, steps: StepTimes) -> tuple[int, float]:
    """The lookahead that promises most, and what."""
    found = {lookahead: iid_speedup(alpha, lookahead, steps) for lookahead in steps.verify_s}
    lookahead = best_lookahead(found)
    return lookahead, found[lookahead]


def in_order(
    chosen: Mapping[str, tuple[int, float]],
    drawn: Mapping[str, Array],
    intervals: Mapping[str, tuple[float, float] | None],
    steps: Mapping[str, StepTimes],
) -> list[Ranked]:
    """Drafts by speed, from the lookahead and speed-up of each, and from its speed-up in every draw."""
    firsts_N = np.array(list(drawn.values())).argmax(axis=0)
    ranked = [
        Ranked(
            draft=name,
            lookahead=lookahead,
            speedup=speedup,
            interval=intervals[name],
            tokens_per_s=speedup / steps[name].target_s,
            first_share=float((firsts_N == place).mean()),
        )
        for place, (name, (lookahead, speedup)) in enumerate(chosen.items())
    ]
    return sorted(ranked, key=lambda one: -one.speedup)


def resampling_of(scorecard: Record) -> Resampling:
    """As the scorecard's own intervals were made."""
    settings = scorecard["settings"]
    return Resampling(settings["confidence"], settings["num_resamples"], settings["seed"])


def drawn_speedups(row: Record, lookahead: int, times: Sequence[StepTimes], resampling: Resampling) -> Array:
    """What a draft is worth in every draw of prompts and times, at one lookahead."""
    [entry] = [entry for entry in row["lookahead"] if entry["lookahead"] == lookahead]
    [rounds] = [one["counts"] for one in row["by_prompt"]["rounds"] if one["lookahead"] == lookahead]
    tokens_P, rounds_P = np.array(row["by_prompt"]["tokens"]), np.array(rounds)
    weights_NP = resampling_weights(len(tokens_P), resampling)
    taus_N = (weights_NP @ tokens_P) / (weights_NP @ rounds_P)
    return np.array(
        [predicted_speedup(tau, full_rate(entry), lookahead, each) for tau, each in zip(taus_N, times, strict=True)]
    )


def step_times(latency: Record) -> dict[str, StepTimes]:
    """Medians of the target and of each draft."""
    return {one["draft"]: times_of(latency, one, lambda step: step["median_ms"]) for one in latency["drafts"]}


def drawn_times(latency: Record, resampling: Resampling) -> dict[str, list[StepTimes]]:
    """The same, drawn anew for every resample from a normal law as wide as the interval of each median.

    A draw of a target's step is the same for all drafts.
    """
    rng, spread = np.random.default_rng(resampling.seed), NormalDist().inv_cdf((1 + resampling.confidence) / 2)
    drawn = {
        id(step): step["median_ms"] + width(step) / (2 * spread) * rng.standard_normal(resampling.num_resamples)
        for step in steps_of(latency)
    }
    return {
        one["draft"]: [
            times_of(latency, one, lambda step, place=place: max(drawn[id(step)][place], 1e-9))
            for place in range(resampling.num_resamples)
        ]
        for one in latency["drafts"]
    }


def width(step: Record) -> float:
    """How wide the interval of a median is; none is known of few repetitions."""
    return step["interval_ms"][1] - step["interval_ms"][0] if step["interval_ms"] else 0.0


def times_of(latency: Record, draft: Record, milliseconds: Callable[[Record], float]) -> StepTimes:
    """The steps of the target and one draft, in seconds."""
    return StepTimes(
        target_s=milliseconds(latency["target"]) / 1000,
        draft_s=milliseconds(draft["one_token"]) / 1000,
        draft_two_s=milliseconds(draft["two_tokens"]) / 1000,
        verify_s={step["lookahead"]: milliseconds(step) / 1000 for step in latency["verify"]},
    )


@dataclass(frozen=True)
class Prospect:
    """What a shape could do at most, known from its step times alone.

    Attributes:
        lookahead: At which the least acceptance suffices.
        least_alpha: Acceptance of a token at which drafting begins to pay; None if even certain acceptance does not.
        cost_ratio: A draft step over a target step.
        most: Speed-up if everything were accepted, at the best of the lookaheads.
    """

    lookahead: int
    least_alpha: float | None
    cost_ratio: float
    most: float


def prospect(steps: StepTimes) -> Prospect:
    """What step times alone allow, over all lookaheads whose verification was timed."""
    needed = {lookahead: break_even_alpha(lookahead, steps) for lookahead in steps.verify_s}
    paying = {lookahead: alpha for lookahead, alpha in needed.items() if alpha is not None}
    lookahead = min(paying, key=lambda each: paying[each]) if paying else min(needed)
    _, most = iid_promise(1.0, steps)
    return Prospect(lookahead, paying.get(lookahead), steps.cost_ratio, most)


def equal_alpha(speedup: float, steps: StepTimes) -> float | None:
    """The acceptance with which a draft of these steps is so fast, at the lookahead that is then best for it.

    Returns:
        A number in [0, 1]; None if not even certain acceptance makes it faster.
    """
    return root_in_unit(lambda alpha: iid_promise(alpha, steps)[1] - speedup)
