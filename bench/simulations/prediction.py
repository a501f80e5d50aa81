"""What scorecards and `widedraft choose` predict of drafts, from prompts and step times together."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bench.simulations.latency import Series, stretch
from bench.simulations.prompts import LOOKAHEAD, Population, population
from bench.simulations.shares import Row, is_inside, share_of
from distill.choose.page import RIVAL_SHARE
from eval.acceptance.promise import promise
from eval.acceptance.ranking import predicted_interval, ranking, step_times
from eval.latency.steps import TARGET, Kind
from eval.scorecard.record import step_record

Record = dict[str, Any]

REPEATS = 40  # eval.latency_repeats
SIZES = (32, 64)
LOGIT = -0.6
DRAFTS = ("a", "b")
SETTINGS = {"confidence": 0.95, "num_resamples": 500, "seed": 17}


def calm(series: Series) -> Series:
    """The same on a machine whose times scatter by a twentieth as much: there the doubt is that of prompts."""
    medians = {kind: float(np.median(seconds)) for kind, seconds in series.seconds.items()}
    return Series(
        {kind: median * (series.seconds[kind] / median) ** 0.05 for kind, median in medians.items()}, series.shapes
    )


def scorecard_of(drawn: Population, series: Series) -> Record:
    """As much of a scorecard as a prediction reads: drafts of one shape, so that their steps take the same time."""
    latency = series.latency()
    shape = series.shapes[0].name
    own = {"one_token": step_record(latency.draft(shape)), "two_tokens": step_record(latency.draft_two(shape))}
    return {
        "settings": SETTINGS,
        "acceptance": [acceptance_of(drawn, place) for place in range(len(DRAFTS))],
        "latency": {
            "target": step_record(latency.target),
            "verify": [{"lookahead": LOOKAHEAD, **step_record(latency.verify[LOOKAHEAD])}],
            "drafts": [{"draft": name, **{kind: dict(step) for kind, step in own.items()}} for name in DRAFTS],
        },
    }


def acceptance_of(drawn: Population, place: int) -> Record:
    """One draft's row."""
    tokens, rounds = drawn.tau_columns(place)
    return {
        "draft": DRAFTS[place],
        "temperature": 0.0,
        "lookahead": [
            {
                "lookahead": LOOKAHEAD,
                "rounds": sum(rounds),
                "fully_accepted": float(drawn.full_DP[place].sum()),
                "tau": {"value": sum(tokens) / sum(rounds)},
            }
        ],
        "by_prompt": {"tokens": tokens, "rounds": [{"lookahead": LOOKAHEAD, "counts": rounds}]},
    }


def prediction_rows(series: Series, runs: int, *, seed: int, sizes: Sequence[int] = SIZES) -> Iterator[Row]:
    """How often a predicted speed holds, and how often one of two equal drafts is said to be the fastest."""
    everything = population((LOGIT, LOGIT), seed=seed)
    kept = {kind: seconds for kind, seconds in series.seconds.items() if kind in kinds_of(series)}
    recorded = Series(kept, series.shapes[:1])
    for machine, steps in (("busy", recorded), ("calm", calm(recorded))):
        for size in sizes:
            yield from rows_of(everything, steps, size, f"{size} prompts, {machine} machine", runs=runs, seed=seed)


def rows_of(everything: Population, series: Series, size: int, where: str, *, runs: int, seed: int) -> Iterator[Row]:
    """Both shares, for so many prompts and REPEATS repetitions in one stretch."""
    truth = promise(acceptance_of(everything, 0), step_times(scorecard_of(everything, series)["latency"])["a"])[1]

    def drawn(rng: np.random.Generator) -> Record:
        return scorecard_of(everything.sample(size, rng), series.taken(stretch(series.repeats, REPEATS, rng)))

    def holds(rng: np.random.Generator) -> bool:
        forecast = {"draft": "a", "temperature": 0.0, "best_lookahead": LOOKAHEAD}
        return is_inside(truth, predicted_interval(drawn(rng), forecast))

    def is_sure(rng: np.random.Generator) -> bool:
        return min(one.first_share for one in ranking(drawn(rng), 0.0)) < RIVAL_SHARE

    share = share_of(runs, holds, seed=seed)
    yield Row("scorecard: predicted speed-up", where, holds=True, nominal=0.95, share=share, runs=runs)
    what, share = "choose: one of two equal drafts is called the fastest", share_of(runs, is_sure, seed=seed)
    yield Row(what, where, holds=False, nominal=0.05, share=share, runs=runs)


def kinds_of(series: Series) -> list[Kind]:
    """The steps of one draft and its target at one lookahead."""
    shape = series.shapes[0].name
    return [Kind(TARGET, 1), Kind(TARGET, LOOKAHEAD + 1), Kind(shape, 1), Kind(shape, 2)]
