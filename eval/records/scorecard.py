"""scorecard.json: one target, its drafts, and all that was found of them. docs/scoring.md explains every field.

The drafts stand from the first baseline to the one the scorecard is about, which is decoded live.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from eval.config import SamplingConfig
from eval.records.acceptance import AcceptanceRow, RecordedRow
from eval.records.differences import DifferenceRow
from eval.records.origin import DraftModel, Prompts, Provenance, ScoredModel, Settings, machine_words
from eval.records.scorecard_speeds import Live, PolicyRow, SpeedupRow, StoppingRow
from eval.records.steps import ScoredLatency
from eval.records.values import Count, Counted, NotNegative, Some, only, require_equal

SCHEMA = "widedraft.scorecard/3"
RECORDED_SCHEMA = "widedraft.recorded/1"


class ScoredSettings(Settings):
    """How a scorecard was made."""

    max_new_tokens: Count
    max_prompt_len: Count
    batch_size: Count
    speedup_intervals: str | None = None  # how those of speed-ups were made


@dataclass(frozen=True, kw_only=True)
class Scorecard:
    """The file; whatever stands in it twice is the same."""

    schema: Literal["widedraft.scorecard/3"] = SCHEMA
    warnings: tuple[str, ...]
    target: ScoredModel
    drafts: Some[DraftModel]
    prompts: Prompts
    settings: ScoredSettings
    acceptance: Some[AcceptanceRow]
    differences: tuple[DifferenceRow, ...]
    latency: ScoredLatency
    speedup: Some[SpeedupRow]
    policies: tuple[PolicyRow, ...]
    live: Live | None  # at temperature 0, else at the first one scored; older scorecards have none there
    provenance: Provenance
    live_at: tuple[Live, ...] = ()  # at the other temperatures
    stopping: tuple[StoppingRow, ...] = ()  # of the last draft alone; empty where nothing was tuned

    def __post_init__(self) -> None:
        for part, actual, due in pairs_of_parts(self):
            require_equal(part, actual, due)

    @property
    def primary(self) -> str:
        """The draft it is about: the last one."""
        return self.drafts[-1].draft

    @property
    def temperatures(self) -> list[float]:
        """Those that were scored, in their order."""
        return list(dict.fromkeys(row.temperature for row in self.acceptance))

    @property
    def machine(self) -> str:
        """What the models ran on, in words."""
        return machine_words(self.provenance.hardware, self.settings.device, self.settings.threads)

    def model(self, draft: str) -> DraftModel:
        return only(self.drafts, lambda model: model.draft == draft)

    def rows_at(self, temperature: float) -> list[AcceptanceRow]:
        """Acceptance of every draft at a temperature."""
        return [row for row in self.acceptance if row.temperature == temperature]

    def row(self, draft: str, temperature: float) -> AcceptanceRow:
        """Acceptance of one draft at a temperature that was scored."""
        return only(self.rows_at(temperature), lambda row: row.draft == draft)

    def speedup_of(self, draft: str, temperature: float) -> SpeedupRow:
        """What that is worth."""
        return only(self.speedup, lambda row: (row.draft, row.temperature) == (draft, temperature))

    @property
    def lives(self) -> list[Live]:
        """Live decoding at every temperature at which there was any; the one the verdict is about first."""
        return [] if self.live is None else [self.live, *self.live_at]

    @property
    def main_forecast(self) -> SpeedupRow:
        """What the headline is about: the last draft at temperature 0, or at the first one scored."""
        scored = self.temperatures
        return self.speedup_of(self.primary, 0.0 if 0.0 in scored else scored[0])


def pairs_of_parts(card: Scorecard) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """(name, what a part holds, what the others say it should hold) of all parts."""
    drafts, temperatures = [model.draft for model in card.drafts], card.prompts.temperatures
    yield "drafts", drafts, list(dict.fromkeys(drafts))
    yield "drafts of latency", sorted(draft.draft for draft in card.latency.drafts), sorted(drafts)
    due = sorted(product(drafts, temperatures))
    for part, rows in (("acceptance", card.acceptance), ("speedup", card.speedup)):
        yield f"drafts and temperatures of {part}", sorted((row.draft, row.temperature) for row in rows), due
    for live in card.lives:
        yield "draft of live", [live.draft], [drafts[-1]]
        yield (
            "temperatures of live that were not scored",
            [live.temperature] * (live.temperature not in temperatures),
            [],
        )
    if card.live is not None:
        yield "temperature of live", [card.live.temperature], [0 if 0 in temperatures else temperatures[0]]
        twice = [live.temperature for live in card.lives]
        yield "temperatures of live", twice, list(dict.fromkeys(twice))
    if card.policies:
        yield "temperatures of policies", [row.temperature for row in card.policies], temperatures
    if card.stopping:
        yield "temperatures of stopping", list(dict.fromkeys(row.temperature for row in card.stopping)), temperatures
    yield from pairs_of_lookaheads(card)


def pairs_of_lookaheads(card: Scorecard) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """The same of all lists of lookaheads, and of those that were chosen out of them."""
    due = card.latency.lookaheads
    for part in ("acceptance", "speedup", "differences"):
        for number, row in enumerate(getattr(card, part)):
            yield f"lookaheads of {part}[{number}]", row.lookaheads, due
    for number, row in enumerate(card.acceptance):
        for bin_ in (bin_ for part in row.bins for bin_ in part.bins):
            lookaheads = [rounds.lookahead for rounds in bin_.lookahead]
            yield f"lookaheads of acceptance[{number}], {bin_.bin}", lookaheads, due
        if row.by_prompt is not None:
            lookaheads = [sums.lookahead for sums in row.by_prompt.rounds]
            yield f"lookaheads of acceptance[{number}].by_prompt", lookaheads, due
            counted = [len(row.by_prompt.tokens)]
            yield f"numbers of prompts of acceptance[{number}].by_prompt", counted, [len(card.prompts.sources)]
        has_small_head = card.model(row.draft).head_vocab_size is not None
        told = row.have_coverage
        yield f"whether figures of acceptance[{number}] have a coverage", told, [has_small_head] * len(told)
    chosen = [row.best_lookahead for row in card.speedup] + [live.lookahead for live in card.lives]
    yield "chosen lookaheads that were not scored", [lookahead for lookahead in chosen if lookahead not in due], []


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A figure that a scorecard holds when the target is there, and why this one cannot."""

    figure: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Which recorded answers were scored."""

    path: str
    form: Literal["text", "traces"]
    target_fingerprint: str | None
    temperature: NotNegative
    given: Counted
    unanswered: Counted = 0  # further prompts of the file, behind the last that has an answer
    scored: Counted
    answers: Counted
    tokens: Counted
    sources: tuple[str, ...]
    prompt_ids_sha256: str
    answer_ids_sha256: str
    sampling: SamplingConfig = SamplingConfig()  # noqa: RUF009  # never changes; files from before there was any


@dataclass(frozen=True, kw_only=True)
class RecordedScorecard:
    """scorecard.json of a draft on recorded answers, without their target and so without any speed."""

    schema: Literal["widedraft.recorded/1"] = RECORDED_SCHEMA
    warnings: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    drafts: Some[DraftModel]
    recording: Recording
    settings: Settings
    acceptance: Some[RecordedRow]
    provenance: Provenance

    @property
    def machine(self) -> str:
        """What the draft ran on, in words."""
        return machine_words(self.provenance.hardware, self.settings.device, self.settings.threads)
