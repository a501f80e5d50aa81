"""What scorecards and `widedraft choose` predict of drafts, from prompts and step times together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from distill.choose.search import RIVAL_SHARE
from eval.intervals import Estimate, Resampling
from eval.latency import Kind
from eval.scorecard_schema import TARGET, DraftSteps, ScoredLatency
from eval.speedup import predicted_interval, promise, ranking
from tests.simulations.latency import Series, stretch
from tests.simulations.prompts import EQUAL, K, Lengths, Population
from tests.simulations.shares import Row, is_inside, share_of

REPEATS = 40  # eval.latency_repeats
SIZES = (32, 64)
DRAFTS = ("a", "b")
RESAMPLING = Resampling(confidence=0.95, num_resamples=500, seed=17)


def calm(series: Series) -> Series:
    """The same on a machine whose times scatter by a twentieth as much: there the doubt is that of prompts."""
    medians = {kind: float(np.median(seconds)) for kind, seconds in series.seconds.items()}
    return Series(
        {kind: median * (series.seconds[kind] / median) ** 0.05 for kind, median in medians.items()}, series.shapes
    )


@dataclass(frozen=True)
class DrawnRounds:
    """As much of a draft's steps as a prediction reads."""

    num_speculative_tokens: int
    tau: Estimate
    full_rate: float


@dataclass(frozen=True)
class DrawnSums:
    """Of every prompt, at the one num_speculative_tokens."""

    tokens: list[float]
    steps: list[float]

    def steps_at(self, num_speculative_tokens: int) -> list[float]:
        assert num_speculative_tokens == K
        return self.steps


@dataclass(frozen=True)
class DrawnRow:
    """One draft."""

    draft: str
    by_k: tuple[DrawnRounds, ...]
    by_prompt: DrawnSums


@dataclass(frozen=True)
class Drawn:
    """As much of a scorecard as a prediction reads."""

    rows: list[DrawnRow]
    latency: ScoredLatency


def drawn_scorecard(drawn: Population, series: Series) -> Drawn:
    """Drafts of one shape, so that their steps take the same time."""
    scored = series.latency()
    [own] = scored.drafts
    drafts = tuple(
        DraftSteps(
            draft=name,
            cost_ratio=own.cost_ratio,
            one_token=own.one_token.model_copy(),
            two_tokens=own.two_tokens.model_copy(),
        )
        for name in DRAFTS
    )
    rows = [drawn_row(drawn, index) for index in range(len(DRAFTS))]
    return Drawn(rows, scored.model_copy(update={"drafts": drafts}))


def drawn_row(drawn: Population, index: int) -> DrawnRow:
    tokens, steps = drawn.tau_columns(index)
    tau, full_rate = sum(tokens) / sum(steps), float(drawn.full_DP[index].sum()) / sum(steps)
    return DrawnRow(DRAFTS[index], (DrawnRounds(K, Estimate(tau, None), full_rate),), DrawnSums(tokens, steps))


def prediction_rows(
    series: Series, runs: int, *, seed: int, sizes: Sequence[int] = SIZES, lengths: Lengths = EQUAL
) -> Iterator[Row]:
    """How often a predicted speed holds, and how often one of two equal drafts is said to be the fastest."""
    everything = lengths.population(0, 0, seed=seed)
    kept = {kind: seconds for kind, seconds in series.seconds.items() if kind in kinds_of(series)}
    recorded = Series(kept, series.shapes[:1])
    for machine, steps in (("busy", recorded), ("calm", calm(recorded))):
        for size in sizes:
            yield from rows_of(
                everything, steps, size, f"{lengths.size(size)}, {machine} machine", runs=runs, seed=seed
            )


def rows_of(everything: Population, series: Series, size: int, where: str, *, runs: int, seed: int) -> Iterator[Row]:
    """Both shares, for so many prompts and REPEATS repetitions in one stretch."""
    whole = drawn_scorecard(everything, series)
    _, truth = promise(whole.rows[0].by_k, whole.latency.step_times("a"))

    def drawn(rng: np.random.Generator) -> Drawn:
        return drawn_scorecard(everything.sample(size, rng), series.taken(stretch(series.repeats, REPEATS, rng)))

    def holds(rng: np.random.Generator) -> bool:
        scorecard = drawn(rng)
        return is_inside(truth, predicted_interval(scorecard.rows[0], K, scorecard.latency, RESAMPLING))

    def is_sure(rng: np.random.Generator) -> bool:
        scorecard = drawn(rng)
        return min(row.first_share for row in ranking(scorecard.rows, scorecard.latency, RESAMPLING)) < RIVAL_SHARE

    share = share_of(runs, holds, seed=seed)
    yield Row("scorecard: predicted speedup", where, holds=True, nominal=0.95, share=share, runs=runs)
    what, share = "choose: one of two equal drafts reported fastest", share_of(runs, is_sure, seed=seed)
    yield Row(what, where, holds=False, nominal=0.05, share=share, runs=runs)


def kinds_of(series: Series) -> list[Kind]:
    """The steps of one draft and its target at one num_speculative_tokens."""
    shape = series.shapes[0].name
    return [Kind(TARGET, 1), Kind(TARGET, K + 1), Kind(shape, 1), Kind(shape, 2)]
