"""scorecard.json as types: one target, its drafts, and everything measured. docs/evaluate.md explains the fields.

The drafts stand in order: baselines first, last the one that the scorecard is about (`primary`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, TypeAdapter, model_validator

from architectures.errors import UserError
from architectures.files import checked, read_json, read_typed, write_json
from architectures.manifest import provenance
from architectures.settings import How, Placement
from eval.config import SamplingConfig
from eval.intervals import Estimate, Resampling

FORMAT, RECORDED_FORMAT = "widedraft.scorecard/4", "widedraft.recorded/2"
CARD_NAME = "scorecard.json"
UNDISTILLED = "undistilled"  # name of the baseline that a run scores: its draft before distillation
LOOKUP = "n-gram lookup"  # name of prompt lookup among the ways of decoding

Item = TypeVar("Item")


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step; any unit will do, for only ratios count.

    Attributes:
        target_s: The target, one token.
        draft_s: The draft, one token, within a chain of such steps.
        draft_two_s: The draft, two tokens at once.
        verify_s: The target, lookahead + 1 tokens at once, for each lookahead.
    """

    target_s: float
    draft_s: float
    draft_two_s: float
    verify_s: Mapping[int, float]

    @property
    def cost_ratio(self) -> float:
        """Draft step over target step: Leviathan's c."""
        return self.draft_s / self.target_s


Some = Annotated[tuple[Item, ...], Field(min_length=1)]


def only(rows: Sequence[Item], is_it: Callable[[Item], bool]) -> Item:
    """The one row for which a condition holds; UserError if a file that was edited has none, or several."""
    found = list(filter(is_it, rows))
    if len(found) != 1:
        raise UserError(f"The scorecard has {len(found)} rows where one belongs. Run `widedraft eval` again.")
    return found[0]


class Record(BaseModel):
    """A frozen part of a result file."""

    model_config = ConfigDict(frozen=True)


@dataclass(frozen=True)
class Ratio:
    """A ratio of counts with its interval; both None where nothing was counted."""

    value: FiniteFloat | None
    interval: tuple[FiniteFloat, FiniteFloat] | None


@dataclass(frozen=True)
class Mean(Estimate):
    """A mean over tokens with the sum it was made from."""

    sum: float
    tokens: float


# Provenance: models, prompts, settings, machine.


class ScoredModel(Record):
    """A model that was loaded.

    Attributes:
        path: Its directory.
        fingerprint: fingerprint_checkpoint of that.
        head_vocab_size: Tokens of a reduced vocabulary; None if the head covers the whole one.
        bits: Of a weight of its linear layers if they were quantized at load; else None.
        placement: None if it was whole on one device.
    """

    path: str
    fingerprint: str
    model_type: str | None = None
    layers: int
    hidden: int
    parameters: int
    dtype: str
    head_vocab_size: int | None = None
    bits: int | None = None
    placement: Placement | None = None


@dataclass(frozen=True)
class ModelIdentity:
    """A model: its directory, fingerprint_checkpoint of that, and its dtype."""

    path: str
    fingerprint: str
    dtype: str


class DraftModel(ScoredModel):
    """A draft and its name in this scorecard."""

    draft: str


class Hardware(Record):
    """What the models ran on."""

    processor: str
    cores: int
    memory_gib: float
    accelerators: tuple[str, ...]


class Provenance(Record):
    """Command, code, versions and machine."""

    argv: tuple[str, ...]
    created: str
    git_commit: str | None
    python: str
    versions: dict[str, str | None]
    hardware: Hardware

    @classmethod
    def of_this_process(cls) -> "Provenance":
        return cls.model_validate(provenance())


class TaskRow(Record):
    """A task, how many of its prompts were used, and the hash of their content."""

    task: str | None
    version: int | None
    prompts: int
    sha256: str


class AnswersRow(Record):
    """The target's responses at one temperature."""

    temperature: float
    answers: int
    tokens: int
    stopped: int
    ids_sha256: str


class Prompts(Record):
    """Which prompts were used, and the target's responses."""

    given: int
    taken: int
    too_long: int
    scored: int
    tasks: tuple[TaskRow, ...]
    sources: Some[str]
    ids_sha256: str
    answers: Some[AnswersRow]

    def ids_at(self, temperature: float) -> str:
        """Hash of the responses at a temperature that was scored."""
        return only(self.answers, lambda answers: answers.temperature == temperature).ids_sha256


class Settings(BaseModel):
    """Recipe section `eval` as it was used, further keys as extras; seed, device, and how intervals were made."""

    model_config = ConfigDict(frozen=True, extra="allow")

    confidence: float
    num_resamples: int
    seed: int
    dtype: str
    device: str
    threads: int
    max_new_tokens: int
    max_prompt_len: int
    batch_size: int
    sampling: SamplingConfig = SamplingConfig()
    intervals: str  # how intervals of rates were made
    speedup_intervals: str | None = None  # how intervals of wall-clock speedups were made

    @property
    def resampling(self) -> Resampling:
        """As intervals were made."""
        return Resampling(self.confidence, self.num_resamples, self.seed)


# Acceptance: raw counts next to every rate.


class Position(Record):
    """One position of a verification step."""

    position: int
    possible: float
    reached: float
    accepted: float
    joint: Estimate
    conditional: Ratio


class RoundFigures(Record):
    """Counts and rates of verification steps at one number of speculative tokens."""

    lookahead: int
    rounds: float
    proposed: float
    accepted: float
    emitted: float
    fully_accepted: float
    histogram: tuple[float, ...]
    utilisation: Ratio


class BinRounds(RoundFigures):
    """Verification steps that start at the tokens of a bin; there may be none."""

    tau: Ratio


class Rounds(RoundFigures):
    """All verification steps, with each position in them and each number of accepted tokens."""

    tau: Estimate
    positions: Some[Position]

    @property
    def full_rate(self) -> float:
        """Share of the verification steps that accepted everything."""
        return self.fully_accepted / self.rounds


class RuleRow(Record):
    """Acceptance by one acceptance method."""

    rule: str
    alpha: Mean
    alpha_of_text: Mean
    lookahead: Some[Rounds]

    def at(self, lookahead: int) -> Rounds:
        return only(self.lookahead, lambda rounds: rounds.lookahead == lookahead)


class Bin(Record):
    """Acceptance at the tokens of one bin, and the verification steps that start there."""

    bin: str
    prompts: int
    alpha: Mean
    alpha_of_text: Mean
    greedy_match: Mean
    coverage: Mean | None
    lookahead: tuple[BinRounds, ...]

    def at(self, lookahead: int) -> BinRounds:
        return only(self.lookahead, lambda rounds: rounds.lookahead == lookahead)


class Bins(Record):
    """Tokens by task, category, position or entropy."""

    by: str
    bins: tuple[Bin, ...]


class RoundsByPrompt(Record):
    """Verification steps of each prompt."""

    lookahead: int
    counts: tuple[float, ...]


class PromptSums(Record):
    """Sums of every prompt, in the order of the scorecard's sources: they pair scorecards of the same responses."""

    tokens: tuple[float, ...]
    alpha: tuple[float, ...]
    greedy_match: tuple[float, ...]
    rounds: tuple[RoundsByPrompt, ...]

    def rounds_at(self, lookahead: int) -> tuple[float, ...]:
        return only(self.rounds, lambda entry: entry.lookahead == lookahead).counts


class AcceptanceRow(RuleRow):
    """Acceptance of one draft at one temperature, by the leading acceptance method and by the others.

    Attributes:
        coverage: Share of the response tokens in the draft's reduced vocabulary; None if it has the whole one.
    """

    draft: str
    temperature: float
    answers: int
    prompts: int
    greedy_match: Mean
    coverage: Mean | None
    target_changed_tokens: int
    other_rules: tuple[RuleRow, ...]
    bins: tuple[Bins, ...]
    by_prompt: PromptSums


class TauDifference(Record):
    """At one number of speculative tokens."""

    lookahead: int
    tau: Estimate


class RuleDifference(Record):
    """Draft minus baseline by one acceptance method."""

    rule: str
    alpha: Estimate
    lookahead: tuple[TauDifference, ...]

    def at(self, lookahead: int) -> Estimate:
        """Difference of acceptance lengths."""
        return only(self.lookahead, lambda tau: tau.lookahead == lookahead).tau


class DifferenceRow(RuleDifference):
    """Draft minus baseline at one temperature on the same responses; `greedy_match_p` is that of a sign-flip test."""

    draft: str
    baseline: str
    temperature: float
    other_rules: tuple[RuleDifference, ...]
    greedy_match: Estimate
    greedy_match_p: float


# Step times and what they predict.


@dataclass(frozen=True)
class Percentile:
    """A percentile with bounds by order statistics; a bound is None where no repetition is surely beyond it."""

    value: float
    interval: tuple[float | None, float | None] | None


class StepTime(Record):
    """Milliseconds of one kind of step over all repetitions; p99 only of many."""

    p10_ms: Percentile
    p50_ms: Estimate
    p90_ms: Percentile
    p99_ms: Percentile | None = None

    @property
    def median_ms(self) -> float:
        return self.p50_ms.value


class VerifyStep(StepTime):
    """The target, lookahead + 1 tokens at once."""

    lookahead: int


class DraftSteps(Record):
    """Steps of a draft: one token within a chain of such steps, and two at once, as after a step that accepted all."""

    draft: str
    cost_ratio: float
    one_token: StepTime
    two_tokens: StepTime


class ScoredLatency(Record):
    """Steps of the target and all drafts, timed in interleaved runs; those of a scorecard at batch 1.

    Attributes:
        batch: Sequences decoded together.
        context_tokens: Before each step.
        repeats: Timed repetitions of every step.
        warm_up_repeats: Untimed ones before them.
        settled: Whether warm-up ended because the times had settled.
        target: One token.
        verify: Several tokens, by number of speculative tokens.
        drafts: Each of them.
    """

    batch: int
    context_tokens: int
    repeats: int
    warm_up_repeats: int
    settled: bool
    target: StepTime
    verify: Some[VerifyStep]
    drafts: tuple[DraftSteps, ...]

    @property
    def lookaheads(self) -> list[int]:
        """Those whose verification was timed."""
        return [step.lookahead for step in self.verify]

    @property
    def steps(self) -> list[StepTime]:
        """Every kind of step, of the target and of all drafts."""
        of_drafts = [step for draft in self.drafts for step in (draft.one_token, draft.two_tokens)]
        return [self.target, *self.verify, *of_drafts]

    def of(self, draft: str) -> DraftSteps:
        """The steps of one draft."""
        return only(self.drafts, lambda steps: steps.draft == draft)

    def step_times(
        self, draft: str, milliseconds: Callable[[StepTime], float] = lambda step: step.median_ms
    ) -> StepTimes:
        """The steps of the target and one draft in seconds: medians, or another figure of each."""
        own = self.of(draft)
        return StepTimes(
            target_s=milliseconds(self.target) / 1000,
            draft_s=milliseconds(own.one_token) / 1000,
            draft_two_s=milliseconds(own.two_tokens) / 1000,
            verify_s={step.lookahead: milliseconds(step) / 1000 for step in self.verify},
        )


class Forecast(Record):
    """Speedup at one number of speculative tokens by measured terms, and the acceptance rate from which it pays."""

    lookahead: int
    predicted: float
    break_even_alpha: float | None


class SpeedupRow(Record):
    """Predicted speedup of one draft at one temperature, for every number of speculative tokens."""

    draft: str
    temperature: float
    rule: str
    cost_ratio: float
    best_lookahead: int
    lookahead: Some[Forecast]

    def at(self, lookahead: int) -> Forecast:
        return only(self.lookahead, lambda forecast: forecast.lookahead == lookahead)

    @property
    def predicted(self) -> float:
        """At the best number of speculative tokens."""
        return self.at(self.best_lookahead).predicted

    @property
    def break_even_alpha(self) -> float | None:
        """At the best number of speculative tokens."""
        return self.at(self.best_lookahead).break_even_alpha


# Wall-clock decoding.


class Spent(Record):
    """Time spent on the responses of one way of decoding."""

    tokens: int
    prefill_s: float
    decode_s: float
    ms_per_token: float


class SpentByBoth(Spent):
    """The same, with the parts that draft and target took."""

    draft_s: float
    verify_s: float


class RoundCounts(Record):
    """Counts that decoding and replay must share."""

    rounds: float
    accepted: float
    proposed: float


class Agreement(Record):
    """The lossless check: prompts whose texts and counts are the expected ones, and the counts of loop and replay.

    Attributes:
        exact: Whether every greedy text and every count agrees; of sampled ones, whether `p_value` allows it.
        same_text: Prompts whose speculative text is the one of plain decoding.
        same_as_recorded: Prompts whose speculative text is the recorded response.
        same_counts: Prompts whose every count is the replay's.
        p_value: Of sampled texts: that decoding takes as many verification steps as the replay of these texts expects.
    """

    exact: bool
    same_text: int
    same_as_recorded: int
    same_counts: int
    loop: RoundCounts
    replay: RoundCounts
    p_value: float | None = None


class WayRow(Record):
    """A way of decoding in addition to the draft: prompt lookup."""

    way: str
    lookahead: int
    same_text: int
    speedup: Estimate
    decoding_speedup: Estimate
    spent: Spent


class OverLookup(Record):
    """Speedup of a way with a draft over prompt lookup, in interleaved runs."""

    way: str
    speedup: Estimate


class Live(Record):
    """Wall-clock speedup of decoding with the draft at one temperature, and whether it did what the replay expects."""

    draft: str
    temperature: float
    lookahead: int
    prompts: int
    speedup: Estimate
    decoding_speedup: Estimate
    predicted_decoding_speedup: float
    plain: Spent
    speculative: SpentByBoth
    agreement: Agreement
    ways: tuple[WayRow, ...]
    over_lookup: tuple[OverLookup, ...]

    def way(self, name: str) -> WayRow | None:
        """One of the other ways; None if it was not run."""
        return next((row for row in self.ways if row.way == name), None)


# The files.


class Scorecard(Record):
    """The file."""

    format: Literal["widedraft.scorecard/4"] = FORMAT
    warnings: tuple[str, ...]
    target: ScoredModel
    drafts: Some[DraftModel]
    prompts: Prompts
    settings: Settings
    acceptance: Some[AcceptanceRow]
    differences: tuple[DifferenceRow, ...]
    latency: ScoredLatency
    speedup: Some[SpeedupRow]
    lives: Some[Live]  # temperature 0 first, else in the order of the recipe
    provenance: Provenance

    @property
    def primary(self) -> str:
        """The draft that the scorecard is about: the last one."""
        return self.drafts[-1].draft

    @property
    def temperatures(self) -> list[float]:
        """Those that were scored, in their order."""
        return list(dict.fromkeys(row.temperature for row in self.acceptance))

    @property
    def machine(self) -> str:
        """What the models ran on."""
        return machine_words(self.provenance.hardware, self.settings.device, self.settings.threads)

    @property
    def live(self) -> Live:
        """Wall-clock decoding at temperature 0, or at the first one that was scored."""
        return self.lives[0]

    @property
    def main_forecast(self) -> SpeedupRow:
        """Prediction for the last draft at temperature 0, or at the first one that was scored."""
        return self.speedup_of(self.primary, self.live.temperature)

    def model(self, draft: str) -> DraftModel:
        return only(self.drafts, lambda model: model.draft == draft)

    def rows_at(self, temperature: float) -> list[AcceptanceRow]:
        """Acceptance of every draft at a temperature."""
        return [row for row in self.acceptance if row.temperature == temperature]

    def row(self, draft: str, temperature: float) -> AcceptanceRow:
        """Acceptance of one draft at a temperature that was scored."""
        return only(self.rows_at(temperature), lambda row: row.draft == draft)

    def speedup_of(self, draft: str, temperature: float) -> SpeedupRow:
        """Prediction for one draft at a temperature that was scored."""
        return only(self.speedup, lambda row: (row.draft, row.temperature) == (draft, temperature))


class RecordedRow(Record):
    """Acceptance of a draft along recorded responses, by one method that they decide without their target."""

    draft: str
    temperature: float
    rule: str
    prompts: int
    answers: int
    accept_rate: Mean
    coverage: Mean | None
    lookahead: Some[Rounds]


class RecordedResponses(Record):
    """Which recorded responses were scored; `unanswered`: prompts of the file after the last that has a response."""

    path: str
    form: Literal["text", "traces"]
    target_fingerprint: str | None
    temperature: float
    sampling: SamplingConfig = SamplingConfig()
    given: int
    unanswered: int = 0
    scored: int
    answers: int
    tokens: int
    sources: tuple[str, ...]
    prompt_ids_sha256: str
    answer_ids_sha256: str


class RecordedScorecard(Record):
    """scorecard.json of a draft on recorded responses, without their target and so without any speed."""

    format: Literal["widedraft.recorded/2"] = RECORDED_FORMAT
    warnings: tuple[str, ...]
    drafts: Some[DraftModel]
    recording: RecordedResponses
    settings: Settings
    acceptance: Some[RecordedRow]
    provenance: Provenance

    @property
    def machine(self) -> str:
        """What the draft ran on."""
        return machine_words(self.provenance.hardware, self.settings.device, self.settings.threads)


def machine_words(hardware: Hardware, device: str, num_threads: int) -> str:
    """A GPU by its name, or a CPU with its threads."""
    if device.startswith("cuda"):
        return f"GPU ({hardware.accelerators[0]})"
    return f"CPU ({hardware.processor}, {num_threads} thread{'s' if num_threads > 1 else ''})"


def write_record(record: Any, path: Path) -> None:
    """Write a result file, whole or not at all."""
    write_json(TypeAdapter(type(record)).dump_python(record, mode="json"), path)


def read_any_scorecard(path: Path) -> Scorecard | RecordedScorecard:
    """The scorecard of a file, with its target or of recorded responses.

    Raises:
        UserError: If it is neither; names the file and the first field that does not fit.
    """
    values = read_json(path, f"Name a {CARD_NAME} that `widedraft eval` wrote.")
    found = values.get("format") if isinstance(values, dict) else None
    types = {FORMAT: Scorecard, RECORDED_FORMAT: RecordedScorecard}
    fix = "Delete its directory and run `widedraft eval` again."
    if found not in types:
        raise UserError(f"{path}: format must be {FORMAT}, got {found!r}. {fix}")
    return checked(TypeAdapter(types[found]), values, str(path), fix)


def read_scorecard(path: Path) -> Scorecard:
    """The scorecard of a file; errors as of read_any_scorecard, and if it is of recorded responses."""
    card = read_any_scorecard(path)
    if isinstance(card, RecordedScorecard):
        raise UserError(f"{path}: is of recorded responses, which have no target and no speed. Name another scorecard.")
    return card


GRID_FORMAT = "widedraft.latency/3"
TARGET = "target"  # what the model that is drafted for is called among others


class GridCell(ScoredLatency):
    """One batch at one context.

    Attributes:
        how: How steps were run.
        prefill: The reading of the context, by model; empty where it was not timed.
    """

    how: How
    prefill: dict[str, StepTime] = Field(default_factory=dict)


class GridModel(ScoredModel):
    """A model, and where it was."""

    device: str


class GridFile(Record):
    """The file; its models by the names that steps have."""

    format: Literal["widedraft.latency/3"] = GRID_FORMAT
    models: dict[str, GridModel]
    threads: int
    cells: Some[GridCell]
    provenance: Provenance

    @model_validator(mode="after")
    def _every_draft_is_timed(self) -> "GridFile":
        for number, cell in enumerate(self.cells):
            if {steps.draft for steps in cell.drafts} != set(self.drafts):
                raise ValueError(f"cells.{number} has other drafts than models")
        return self

    @property
    def drafts(self) -> list[str]:
        """All models but the target."""
        return [name for name in self.models if name != TARGET]

    @property
    def lookaheads(self) -> list[int]:
        """Those whose verification was timed."""
        return self.cells[0].lookaheads

    def name_of(self, fingerprint: str) -> str | None:
        """What a draft is called here; None if it was not timed."""
        return next((name for name in self.drafts if self.models[name].fingerprint == fingerprint), None)

    @property
    def where(self) -> str:
        """The machine and the dtype, in words."""
        target = self.models[TARGET]
        return f"a {machine_words(self.provenance.hardware, target.device, self.threads)} in {target.dtype}"


def read_grid_file(path: Path) -> GridFile:
    """A grid of step times.

    Raises:
        UserError: If it is no such file; the message names it and the field.
    """
    return read_typed(path, TypeAdapter(GridFile), "Name a file that `widedraft benchmark --grid --out` wrote.")
