"""What a cell's file keeps of acceptance and step times, a tenth of a scorecard, and what is read of it. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eval.acceptance.estimates import Estimate
from eval.acceptance.speedup import StepTimes
from eval.records.acceptance import AcceptanceRow
from eval.records.steps import ScoredLatency, StepTime
from eval.records.values import Mean

Kept = dict[str, Any]  # as the file has it


@dataclass(frozen=True)
class KeptRounds:
    """Rounds at one lookahead."""

    lookahead: int
    tau: Estimate
    full_rate: float


@dataclass(frozen=True)
class KeptSums:
    """Of every prompt."""

    tokens: Sequence[float]
    rounds: dict[int, Sequence[float]]

    def rounds_at(self, lookahead: int) -> Sequence[float]:
        return self.rounds[lookahead]


@dataclass(frozen=True)
class KeptRow:
    """A cell's draft on one set of answers."""

    draft: str
    lookahead: tuple[KeptRounds, ...]
    by_prompt: KeptSums


def kept_row(row: Kept) -> KeptRow:
    """As ranking takes it."""
    rounds = tuple(
        KeptRounds(entry["lookahead"], Estimate(entry["tau"]["value"], None), entry["fully_accepted"] / entry["rounds"])
        for entry in row["lookahead"]
    )
    counts = {entry["lookahead"]: entry["counts"] for entry in row["by_prompt"]["rounds"]}
    return KeptRow("draft", rounds, KeptSums(row["by_prompt"]["tokens"], counts))


def kept_times(latency: Kept) -> StepTimes:
    """Medians of the target and the cell's draft."""
    [draft] = latency["drafts"]
    return StepTimes(
        target_s=latency["target"]["median_ms"] / 1000,
        draft_s=draft["one_token"]["median_ms"] / 1000,
        draft_two_s=draft["two_tokens"]["median_ms"] / 1000,
        verify_s={step["lookahead"]: step["median_ms"] / 1000 for step in latency["verify"]},
    )


def acceptance_kept(row: AcceptanceRow) -> Kept:
    """What a file keeps of a row."""
    assert row.by_prompt is not None
    return {
        "temperature": row.temperature,
        "rule": row.rule,
        "prompts": row.prompts,
        "answers": row.answers,
        "alpha": mean_kept(row.alpha),
        "greedy_match": mean_kept(row.greedy_match),
        "lookahead": [
            {
                "lookahead": entry.lookahead,
                "rounds": entry.rounds,
                "fully_accepted": entry.fully_accepted,
                "tau": {"value": entry.tau.value, "interval": entry.tau.interval},
            }
            for entry in row.lookahead
        ],
        "by_prompt": {
            "tokens": row.by_prompt.tokens,
            "rounds": [
                {"lookahead": entry.lookahead, "counts": [round(count, 3) for count in entry.counts]}
                for entry in row.by_prompt.rounds
            ],
        },
    }


def mean_kept(mean: Mean) -> Kept:
    return dict(vars(mean))


def latency_kept(latency: ScoredLatency) -> Kept:
    """What a file keeps of step times."""
    [draft] = latency.drafts
    return {
        "context_tokens": latency.context_tokens,
        "repeats": latency.repeats,
        "settled": latency.settled,
        "target": step_kept(latency.target),
        "verify": [{"lookahead": step.lookahead, **step_kept(step)} for step in latency.verify],
        "drafts": [
            {
                "draft": draft.draft,
                "cost_ratio": draft.cost_ratio,
                "one_token": step_kept(draft.one_token),
                "two_tokens": step_kept(draft.two_tokens),
            }
        ],
    }


def step_kept(step: StepTime) -> Kept:
    return {
        "median_ms": step.median_ms,
        "interval_ms": step.p50_ms.interval,
        "p10_ms": step.p10_ms.value,
        "p90_ms": step.p90_ms.value,
    }
