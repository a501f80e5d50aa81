"""What `widedraft choose` loses by training on only those in play: simulated, and written into docs/benchmarks.md.

python -m tests.simulations.halving --out benchmarks/results/halving.json --doc docs/benchmarks.md

Seven depths learn as a law fitted to trainings of one to four layers has it (`tau_of`; deeper ones are extrapolated),
so their order changes on the way. Every ranking has the doubt of its prompts, of its step times,
and of the training itself, whose tau at K lies as far off the law as measured trainings do. A layer costs three
hundredths of the target's step, as of SmolLM2 on two cores, or one.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from architectures.console import Table, markdown, replace_between
from architectures.manifest import git_commit
from distill.choose.candidates import DEPTHS
from distill.choose.search import in_play, is_rival
from eval.intervals import Estimate, Resampling
from eval.scorecard_schema import DraftSteps, Percentile, ScoredLatency, StepTime
from eval.speedup import Ranked, iid_tau, ranking, root_in_unit
from tests.simulations.latency import Series, read_series, stretch
from tests.simulations.prediction import DrawnRounds, DrawnRow, DrawnSums, calm, kinds_of
from tests.simulations.prompts import K, Population, population

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
RESAMPLING = Resampling(confidence=0.95, num_resamples=300, seed=17)
PROMPTS, REPEATS = 64, 40  # eval.num_prompts, eval.latency_repeats
BATCHES = (100, 200, 400)  # of choose
TOKENS = (87_000, 174_000, 348_000)  # of responses, in so many batches of 8
LAYER_COSTS = (0.03, 0.01)
MISSED = 1.48 * 0.039  # standard deviation of a training's tau about the law: 1.48 medians of what was measured
LONG = (838_000, 3)  # response tokens and readings of the training that is meant in the end
BASE_COST = 0.02  # of a draft's step in the target's, without its layers
Keep = Callable[[Sequence[Ranked]], list[Ranked]]
BEGIN, END = "<!-- halving: begin -->", "<!-- halving: end -->"
COLUMNS = (
    "cost of a layer",
    "trained further",
    "batches",
    "best dropped",
    "speed lost",
    "at most",
    "after long training",
)
KEEPS: Mapping[str, Keep] = {
    "better half and rivals": in_play,
    "better half": lambda ranked: list(ranked[: math.ceil(len(ranked) / 2)]),
    "rivals": lambda ranked: [each for place, each in enumerate(ranked) if not place or is_rival(each)],
    "all": list,
}


@dataclass(frozen=True)
class World:
    """What is true.

    Attributes:
        rungs: Prompts of every length of training, for all depths.
        missed: How far tau of a training lies off the law, as a standard deviation.
        layer_cost: Of a layer, in steps of the target.
        series: Recorded repetitions of steps.
    """

    rungs: tuple[Population, ...]
    missed: float
    layer_cost: float
    series: Series

    def speed(self, depth: int, tokens: float, readings: float = 1) -> float:
        """Beside the target alone, at K."""
        return tau_of(depth, tokens, readings) / (K * cost(depth, self.layer_cost) + 1)

    def lost(self, depth: int, tokens: float, readings: float = 1) -> float:
        """The share of the best one's speed that a depth lacks."""
        return 1 - self.speed(depth, tokens, readings) / max(self.speed(each, tokens, readings) for each in DEPTHS)


@dataclass(frozen=True)
class Search:
    """One simulated search: whether the best was dropped, what its winner lacks, and the batches it took."""

    is_dropped: bool
    lost: float
    lost_after_long: float
    batches: int


@dataclass(frozen=True)
class Outcome:
    """A rule of who is trained on, over many searches.

    Attributes:
        layer_cost: Of a layer, in steps of the target.
        rule: Which of KEEPS.
        runs: Searches.
        batches: Of all trainings, in the mean, as a share of those that train everybody to the end.
        dropped: Share of searches that drop the depth that is the fastest after the longest training.
        lost: Speed that the winner lacks after that training, in the mean; `most_lost` in the worst search.
        lost_after_long: After a training of 838 thousand response tokens read three times.
    """

    layer_cost: float
    rule: str
    runs: int
    batches: float
    dropped: float
    lost: float
    most_lost: float
    lost_after_long: float


def main() -> None:
    parser = argparse.ArgumentParser(description="What successive halving loses.")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--doc", type=Path, required=True)
    options = parser.parse_args()
    series = read_series(RESULTS / "step_times.json")
    outcomes = []
    for outcome in halving_outcomes(series, options.runs, seed=options.seed):
        print(" | ".join(cells_of(outcome)), flush=True)
        outcomes.append(outcome)
    record = {"outcomes": [asdict(each) for each in outcomes], "seed": options.seed, "commit": git_commit()}
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    options.doc.write_text(with_table(options.doc.read_text(encoding="utf-8"), outcomes), encoding="utf-8")


def with_table(text: str, outcomes: Iterable[Outcome]) -> str:
    """A page with the table between its two marks."""
    return replace_between(text, BEGIN, END, markdown(Table(COLUMNS, [cells_of(each) for each in outcomes])))


def cells_of(outcome: Outcome) -> tuple[str, ...]:
    return (
        f"{outcome.layer_cost:g}",
        outcome.rule,
        f"{outcome.batches:.0%}",
        f"{outcome.dropped:.0%}",
        f"{outcome.lost:.1%}",
        f"{outcome.most_lost:.1%}",
        f"{outcome.lost_after_long:.1%}",
    )


def halving_outcomes(series: Series, runs: int, *, seed: int) -> Iterator[Outcome]:
    """Every rule of who is trained on, where a layer is dear and where it is cheap."""
    kept = {kind: seconds for kind, seconds in series.seconds.items() if kind in kinds_of(series)}
    steps = calm(Series(kept, series.shapes[:1]))
    rungs = tuple(
        population(tuple(logit(tau_of(depth, tokens)) for depth in DEPTHS), seed=seed, num_prompts=2000)
        for tokens in TOKENS
    )
    for layer_cost in LAYER_COSTS:
        world = World(rungs, MISSED, layer_cost, steps)
        for rule, keep in KEEPS.items():
            yield outcome_of(world, rule, [search(world, keep, np.random.default_rng((seed, n))) for n in range(runs)])


def outcome_of(world: World, rule: str, searches: Sequence[Search]) -> Outcome:
    return Outcome(
        layer_cost=world.layer_cost,
        rule=rule,
        runs=len(searches),
        batches=fmean(each.batches for each in searches) / (len(DEPTHS) * BATCHES[-1]),
        dropped=fmean(each.is_dropped for each in searches),
        lost=fmean(each.lost for each in searches),
        most_lost=max(each.lost for each in searches),
        lost_after_long=fmean(each.lost_after_long for each in searches),
    )


def search(world: World, keep: Keep, rng: np.random.Generator) -> Search:
    """All lengths one behind the other, as the command trains and ranks them."""
    playing, batches, before = list(map(str, DEPTHS)), 0, 0
    ranked: list[Ranked] = []
    for rung, length in zip(world.rungs, BATCHES, strict=True):
        batches += len(playing) * (length - before)
        ranked, before = drawn_ranking(world, rung, playing, rng), length
        if length != BATCHES[-1]:
            kept = {each.draft for each in keep(ranked)}
            playing = [each for each in playing if each in kept]
        if len(playing) == 1:
            break
    best = max(DEPTHS, key=lambda depth: world.speed(depth, TOKENS[-1]))
    winner = int(ranked[0].draft)
    return Search(str(best) not in playing, world.lost(winner, TOKENS[-1]), world.lost(winner, *LONG), batches)


def tau_of(depth: int, tokens: float, readings: float = 1) -> float:
    """Acceptance length of a draft of so many layers that read so many response tokens so often.

    The odds of (tau - 1) / k are a power of the tokens, whose exponent grows with depth, and of the depth;
    further readings are worth 2.03 first ones at most. Fitted to trainings of SmolLM2-135M (docs/benchmarks.md).
    """
    worth = tokens * (1 + 2.027 * (1 - math.exp(-(readings - 1) / 2.027)))
    deep = math.log(depth)
    power = -2.1507 + (0.3678 + 0.0337 * deep) * math.log(worth / 100_000) + 0.2663 * deep
    return 1 + K / (1 + math.exp(-power))


def cost(depth: int, layer_cost: float) -> float:
    return BASE_COST + depth * layer_cost


def logit(tau: float) -> float:
    """The log odds of the acceptance behind so many tokens per round."""
    alpha = root_in_unit(lambda each: iid_tau(each, K) - tau)
    assert alpha is not None
    return math.log(alpha / (1 - alpha))


def drawn_ranking(world: World, rung: Population, playing: Sequence[str], rng: np.random.Generator) -> list[Ranked]:
    """What the command would rank, of trainings and a scorecard that are drawn."""
    prompts = rung.sample(PROMPTS, rng)
    rows = [drawn_row(prompts, str(depth), rng, world.missed) for depth in DEPTHS]
    latency = world.series.taken(stretch(world.series.repeats, REPEATS, rng)).latency()
    steps = tuple(draft_steps(latency, depth, cost(depth, world.layer_cost)) for depth in DEPTHS)
    timed = latency.model_copy(update={"drafts": steps})
    return ranking([row for row in rows if row.draft in playing], timed, RESAMPLING)


def drawn_row(prompts: Population, name: str, rng: np.random.Generator, missed: float) -> DrawnRow:
    """One draft, whose training ended a little above or below the law."""
    place = list(map(str, DEPTHS)).index(name)
    tokens, steps = prompts.tau_columns(place)
    tau = sum(tokens) / sum(steps)
    off = max(1.0, tau + rng.normal(0, missed)) / tau
    full_rate = float(prompts.full_DP[place].sum()) / sum(steps)
    sums = DrawnSums(tokens, [each / off for each in steps])
    return DrawnRow(name, (DrawnRounds(K, Estimate(tau * off, None), full_rate),), sums)


def draft_steps(latency: ScoredLatency, depth: int, cost_ratio: float) -> DraftSteps:
    """Steps that take a share of the target's, and scatter as they did."""
    [recorded] = latency.drafts
    factor = cost_ratio / recorded.cost_ratio
    return DraftSteps(
        draft=str(depth),
        cost_ratio=cost_ratio,
        one_token=times(recorded.one_token, factor),
        two_tokens=times(recorded.two_tokens, factor),
    )


def times(step: StepTime, factor: float) -> StepTime:
    """A step that takes so many times as long."""

    def scaled(bounds: tuple[float, float] | None) -> tuple[float, float] | None:
        return None if bounds is None else (bounds[0] * factor, bounds[1] * factor)

    return StepTime(
        p10_ms=Percentile(step.p10_ms.value * factor, None),
        p50_ms=Estimate(step.p50_ms.value * factor, scaled(step.p50_ms.interval)),
        p90_ms=Percentile(step.p90_ms.value * factor, None),
    )


if __name__ == "__main__":
    main()
