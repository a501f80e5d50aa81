"""Types of scorecard.json: one target, its drafts, and all measurements. docs/evaluate.md explains the fields.

Drafts are ordered: baselines first, last the one that the scorecard is about (`primary`).
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
from eval.config import EvalConfig, SamplingConfig
from eval.intervals import INTERVALS, Estimate, Resampling

FORMAT, RECORDED_FORMAT = "widedraft.scorecard/6", "widedraft.recorded/2"
CARD_NAME = "scorecard.json"
UNDISTILLED = "undistilled"  # name of a run's baseline: its draft before distillation
LOOKUP, LOOKUP_THEN_DRAFT = "n-gram lookup", "draft with n-gram lookup"  # names of ways of decoding

Item = TypeVar("Item")


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step, in any unit: only ratios count.

    Attributes:
        draft_s: The draft, one token, within a chain of such steps.
        verify_s: The target, k + 1 tokens at once, by k.
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
    """Return the only row that meets a condition; UserError if an edited file has none, or several."""
    found = list(filter(is_it, rows))
    if len(found) != 1:
        raise UserError(f"The scorecard has {len(found)} rows instead of one. Run `widedraft eval` again.")
    return found[0]


class Record(BaseModel):
    """A frozen part of a result file."""

    model_config = ConfigDict(frozen=True)


@dataclass(frozen=True)
class Ratio:
    """A ratio of counts with its interval; both None if nothing was counted."""

    value: FiniteFloat | None
    interval: tuple[FiniteFloat, FiniteFloat] | None


@dataclass(frozen=True)
class Mean(Estimate):
    """A mean over tokens with its sum."""

    sum: float
    tokens: float


# Provenance: models, prompts, settings, machine.


class ScoredModel(Record):
    """A loaded model.

    Attributes:
        fingerprint: fingerprint_checkpoint of the directory.
        head_vocab_size: Tokens of a reduced vocabulary; None if the head covers the whole one.
        bits: Bits per weight of its linear layers if quantized at load; else None.
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
    """A model: its directory, fingerprint_checkpoint of the directory, and dtype."""

    path: str
    fingerprint: str
    dtype: str


class DraftModel(ScoredModel):
    """A draft and its name in this scorecard."""

    draft: str


class Hardware(Record):
    """The machine that the models ran on."""

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
    """A task, how many of its prompts were used, and a hash of their content."""

    task: str | None
    version: int | None
    prompts: int
    sha256: str


class ResponsesRow(Record):
    """The target's responses at one temperature; longest has the tokens of the longest prompt with its response."""

    temperature: float
    responses: int
    tokens: int
    stopped: int
    longest: int | None = None
    ids_sha256: str


class Prompts(Record):
    """The prompts that were used, and the target's responses."""

    given: int
    taken: int
    too_long: int
    scored: int
    tasks: tuple[TaskRow, ...]
    sources: Some[str]
    ids_sha256: str
    responses: Some[ResponsesRow]

    def ids_at(self, temperature: float) -> str:
        return only(self.responses, lambda responses: responses.temperature == temperature).ids_sha256


class Settings(BaseModel):
    """Recipe section `eval` as used, further keys as extras; seed, device, and method of intervals."""

    model_config = ConfigDict(frozen=True, extra="allow")

    confidence: float
    num_resamples: int
    seed: int
    dtype: str
    device: str
    threads: int
    max_new_tokens: int
    max_prompt_len: int | None = None
    batch_size: int
    sampling: SamplingConfig = SamplingConfig()
    intervals: str  # method of intervals of rates
    speedup_intervals: str | None = None  # method of intervals of wall-clock speedups

    @classmethod
    def of(cls, config: EvalConfig, resampling: Resampling, **own: Any) -> "Settings":
        return cls(**config.model_dump(mode="json"), **vars(resampling), intervals=INTERVALS, **own)

    @property
    def resampling(self) -> Resampling:
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


class StepFigures(Record):
    """Counts and rates of verification steps at one number of speculative tokens."""

    num_speculative_tokens: int
    steps: float
    proposed: float
    accepted: float
    emitted: float
    fully_accepted: float
    histogram: tuple[float, ...]
    utilisation: Ratio


class BinStepsAtK(StepFigures):
    """Verification steps that start at the tokens of a bin; there may be none."""

    tau: Ratio


class StepsAtK(StepFigures):
    """All verification steps, with each position in them and each number of accepted tokens."""

    tau: Estimate
    positions: Some[Position]

    @property
    def full_rate(self) -> float:
        return self.fully_accepted / self.steps


class RuleRow(Record):
    """Acceptance by one acceptance method."""

    rule: str
    alpha: Mean
    alpha_of_text: Mean
    by_k: Some[StepsAtK]

    def at(self, num_speculative_tokens: int) -> StepsAtK:
        return only(self.by_k, lambda steps: steps.num_speculative_tokens == num_speculative_tokens)


class Bin(Record):
    """Acceptance at the tokens of one bin, and the verification steps that start there."""

    bin: str
    prompts: int
    alpha: Mean
    alpha_of_text: Mean
    greedy_match: Mean
    coverage: Mean | None
    by_k: tuple[BinStepsAtK, ...]

    def at(self, num_speculative_tokens: int) -> BinStepsAtK:
        return only(self.by_k, lambda steps: steps.num_speculative_tokens == num_speculative_tokens)


class Bins(Record):
    """Tokens by task, category, output position, context length or entropy."""

    by: str
    bins: tuple[Bin, ...]


class StepsByPrompt(Record):
    """Verification steps of each prompt."""

    num_speculative_tokens: int
    counts: tuple[float, ...]


class PromptSums(Record):
    """Sums per prompt, in the order of the scorecard's sources: they pair scorecards of the same responses."""

    tokens: tuple[float, ...]
    alpha: tuple[float, ...]
    greedy_match: tuple[float, ...]
    steps: tuple[StepsByPrompt, ...]

    def steps_at(self, num_speculative_tokens: int) -> tuple[float, ...]:
        return only(self.steps, lambda entry: entry.num_speculative_tokens == num_speculative_tokens).counts


class AcceptanceRow(RuleRow):
    """Acceptance of one draft at one temperature, by the leading and the other acceptance methods.

    Attributes:
        coverage: Share of the response tokens in the draft's reduced vocabulary; None if it has the whole one.
    """

    draft: str
    temperature: float
    responses: int
    prompts: int
    greedy_match: Mean
    coverage: Mean | None
    target_changed_tokens: int
    other_rules: tuple[RuleRow, ...]
    bins: tuple[Bins, ...]
    by_prompt: PromptSums


class TauDifference(Record):
    """Difference at one number of speculative tokens."""

    num_speculative_tokens: int
    tau: Estimate


class RuleDifference(Record):
    """Draft minus baseline by one acceptance method."""

    rule: str
    alpha: Estimate
    by_k: tuple[TauDifference, ...]

    def at(self, num_speculative_tokens: int) -> Estimate:
        return only(self.by_k, lambda tau: tau.num_speculative_tokens == num_speculative_tokens).tau


class DifferenceRow(RuleDifference):
    """Draft minus baseline at one temperature on the same responses; `greedy_match_p` is that of a sign-flip test."""

    draft: str
    baseline: str
    temperature: float
    other_rules: tuple[RuleDifference, ...]
    greedy_match: Estimate
    greedy_match_p: float


class StreamRow(Record):
    """A draft over the last requests of one source of an online stream; gains are over the first baseline."""

    source: str
    draft: str
    requests: int
    alpha: Estimate
    tau: Estimate
    alpha_gain: Estimate | None = None
    tau_gain: Estimate | None = None


# Step times and what they predict.


@dataclass(frozen=True)
class Percentile:
    """A percentile with bounds by order statistics; a bound is None if no repetition is surely beyond it."""

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
    """The target, k + 1 tokens at once."""

    num_speculative_tokens: int


class DraftSteps(Record):
    """Steps of a draft: one token within a chain, and two at once, as after a step that accepted all tokens."""

    draft: str
    cost_ratio: float
    one_token: StepTime
    two_tokens: StepTime


class ScoredLatency(Record):
    """Steps of the target and all drafts, timed in interleaved runs; at batch 1 in a scorecard.

    Attributes:
        batch: Sequences decoded together.
        context_tokens: Before each step.
        warm_up_repeats: Untimed repetitions before them.
        settled: False if warm-up ended before the times had settled.
        verify: Several tokens, by number of speculative tokens.
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
    def ks(self) -> list[int]:
        return [step.num_speculative_tokens for step in self.verify]

    @property
    def steps(self) -> dict[str, StepTime]:
        """Every kind of step by its name in tables."""
        steps = {"target, 1 token": self.target}
        steps |= {f"target, {step.num_speculative_tokens + 1} tokens (verification)": step for step in self.verify}
        for draft in self.drafts:
            steps |= {f"{draft.draft}, 1 token": draft.one_token, f"{draft.draft}, 2 tokens": draft.two_tokens}
        return steps

    def of(self, draft: str) -> DraftSteps:
        return only(self.drafts, lambda steps: steps.draft == draft)

    def step_times(
        self, draft: str, milliseconds: Callable[[StepTime], float] = lambda step: step.median_ms
    ) -> StepTimes:
        """Return the steps of the target and one draft in seconds: medians, or another figure of each."""
        own = self.of(draft)
        return StepTimes(
            target_s=milliseconds(self.target) / 1000,
            draft_s=milliseconds(own.one_token) / 1000,
            draft_two_s=milliseconds(own.two_tokens) / 1000,
            verify_s={step.num_speculative_tokens: milliseconds(step) / 1000 for step in self.verify},
        )


class Forecast(Record):
    """Predicted speedup at one number of speculative tokens, and the break-even acceptance rate."""

    num_speculative_tokens: int
    predicted: float
    break_even_alpha: float | None


class SpeedupRow(Record):
    """Predicted speedup of one draft at one temperature, for every number of speculative tokens."""

    draft: str
    temperature: float
    rule: str
    cost_ratio: float
    best_k: int
    by_k: Some[Forecast]

    def at(self, num_speculative_tokens: int) -> Forecast:
        return only(self.by_k, lambda forecast: forecast.num_speculative_tokens == num_speculative_tokens)

    @property
    def predicted(self) -> float:
        """At the best number of speculative tokens."""
        return self.at(self.best_k).predicted

    @property
    def break_even_alpha(self) -> float | None:
        """At the best number of speculative tokens."""
        return self.at(self.best_k).break_even_alpha


# Wall-clock decoding.


class Spent(Record):
    """Time spent on the responses of one way of decoding."""

    tokens: int
    prefill_s: float
    decode_s: float
    ms_per_token: float


class SpentByBoth(Spent):
    """Time spent on the responses, with the parts of draft and target."""

    draft_s: float
    verify_s: float


class StepCounts(Record):
    """Counts that decoding and replay must share."""

    steps: float
    accepted: float
    proposed: float


class Agreement(Record):
    """The lossless check: prompts whose texts and counts match, and total counts of decoding and of replay.

    Attributes:
        exact: True if every greedy text and every count matches; of sampled texts, if `p_value` allows it.
        same_text: Prompts whose speculative text equals plain decoding.
        same_as_recorded: Prompts whose speculative text equals the recorded response.
        same_counts: Prompts whose counts all equal the replay's.
        p_value: Of sampled texts: decoding takes the number of verification steps that their replay expects.
    """

    exact: bool
    same_text: int
    same_as_recorded: int
    same_counts: int
    loop: StepCounts
    replay: StepCounts
    p_value: float | None = None


class WayRow(Record):
    """A way of decoding in addition to the draft: prompt lookup, only or in front of the draft.

    The acceptance rate is that of the tokens proposed, None if there are none; the length is per verification step.
    """

    way: str
    num_speculative_tokens: int
    acceptance_rate: float | None
    acceptance_length: float
    same_text: int
    speedup: Estimate
    decoding_speedup: Estimate
    spent: Spent


class OverLookup(Record):
    """Speedup of a way with a draft over prompt lookup, in interleaved runs."""

    way: str
    speedup: Estimate


class Live(Record):
    """Wall-clock speedup of decoding with the draft at one temperature, and its agreement with the replay."""

    draft: str
    temperature: float
    num_speculative_tokens: int
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
        return next((row for row in self.ways if row.way == name), None)


# The files.


class Scorecard(Record):
    """A scorecard: one target, its drafts, and all measurements."""

    format: Literal["widedraft.scorecard/6"] = FORMAT
    warnings: tuple[str, ...]
    target: ScoredModel
    drafts: Some[DraftModel]
    prompts: Prompts
    settings: Settings
    acceptance: Some[AcceptanceRow]
    differences: tuple[DifferenceRow, ...]
    latency: ScoredLatency
    speedup: Some[SpeedupRow]
    lives: Some[Live]  # temperature 0 first, then in the order of the recipe
    on_stream: tuple[StreamRow, ...] = ()
    provenance: Provenance

    @property
    def primary(self) -> str:
        """Name of the draft that the scorecard is about: the last one."""
        return self.drafts[-1].draft

    @property
    def temperatures(self) -> list[float]:
        return list(dict.fromkeys(row.temperature for row in self.acceptance))

    @property
    def machine(self) -> str:
        return machine_words(self.provenance.hardware, self.settings.device, self.settings.threads)

    @property
    def live(self) -> Live:
        """Wall-clock decoding at temperature 0, or at the first scored one."""
        return self.lives[0]

    @property
    def main_forecast(self) -> SpeedupRow:
        """Prediction for the last draft at temperature 0, or at the first scored one."""
        return self.speedup_of(self.primary, self.live.temperature)

    def model(self, draft: str) -> DraftModel:
        return only(self.drafts, lambda model: model.draft == draft)

    def rows_at(self, temperature: float) -> list[AcceptanceRow]:
        return [row for row in self.acceptance if row.temperature == temperature]

    def row(self, draft: str, temperature: float) -> AcceptanceRow:
        return only(self.rows_at(temperature), lambda row: row.draft == draft)

    def speedup_of(self, draft: str, temperature: float) -> SpeedupRow:
        return only(self.speedup, lambda row: (row.draft, row.temperature) == (draft, temperature))


class RecordedRow(Record):
    """Acceptance of a draft along recorded responses, by one method that does not need the target."""

    draft: str
    temperature: float
    rule: str
    prompts: int
    responses: int
    accept_rate: Mean
    coverage: Mean | None
    by_k: Some[StepsAtK]


class ServedModel(Record):
    """The model of a server, and the target whose tokenizer and template rendered its prompts; None if unknown."""

    name: str
    url: str | None = None
    target: str | None = None


class RecordedResponses(Record):
    """The recorded responses that were scored; `unanswered`: prompts after the last one with a response."""

    path: str
    form: Literal["text", "traces"]
    target_fingerprint: str | None
    served: ServedModel | None = None
    temperature: float
    sampling: SamplingConfig = SamplingConfig()
    given: int
    unanswered: int = 0
    scored: int
    responses: int
    tokens: int
    sources: tuple[str, ...]
    prompt_ids_sha256: str
    response_ids_sha256: str


class RecordedScorecard(Record):
    """scorecard.json of a draft on recorded responses, without their target and therefore without speeds."""

    format: Literal["widedraft.recorded/2"] = RECORDED_FORMAT
    warnings: tuple[str, ...]
    drafts: Some[DraftModel]
    recording: RecordedResponses
    settings: Settings
    acceptance: Some[RecordedRow]
    provenance: Provenance

    @property
    def machine(self) -> str:
        return machine_words(self.provenance.hardware, self.settings.device, self.settings.threads)


def machine_words(hardware: Hardware, device: str, num_threads: int) -> str:
    if device.startswith("cuda"):
        return f"GPU ({hardware.accelerators[0]})"
    return f"CPU ({hardware.processor}, {num_threads} thread{'s' if num_threads > 1 else ''})"


def write_record(record: Any, path: Path) -> None:
    """Write a result file atomically."""
    write_json(TypeAdapter(type(record)).dump_python(record, mode="json"), path)


def read_any_scorecard(path: Path) -> Scorecard | RecordedScorecard:
    """Read a scorecard, with its target or of recorded responses.

    Raises:
        UserError: If it is neither; names the file and the first invalid field.
    """
    values = read_json(path, f"Pass a {CARD_NAME} written by `widedraft eval`.")
    found = values.get("format") if isinstance(values, dict) else None
    types = {FORMAT: Scorecard, RECORDED_FORMAT: RecordedScorecard}
    fix = "Delete its directory and run `widedraft eval` again."
    if found not in types:
        raise UserError(f"{path}: format must be {FORMAT}, got {found!r}. {fix}")
    return checked(TypeAdapter(types[found]), values, str(path), fix)


def read_scorecard(path: Path) -> Scorecard:
    """Read a scorecard with its target; errors as for read_any_scorecard."""
    card = read_any_scorecard(path)
    if isinstance(card, RecordedScorecard):
        raise UserError(f"{path}: scores recorded responses, without target or speed. Pass another scorecard.")
    return card


TARGET = "target"  # name of the target among the models


class GridCell(ScoredLatency):
    """One batch at one context.

    Attributes:
        how: How steps were run.
        prefill: Prefill of the context, by model; empty if it was not timed.
    """

    how: How
    prefill: dict[str, StepTime] = Field(default_factory=dict)


class GridModel(ScoredModel):
    """A model and its device."""

    device: str


class GridFile(Record):
    """latency.json, or the file of `widedraft benchmark --grid`; models by the names of their steps."""

    format: Literal["widedraft.latency/3"] = "widedraft.latency/3"
    models: dict[str, GridModel]
    threads: int
    cells: Some[GridCell]
    provenance: Provenance

    @model_validator(mode="after")
    def _every_draft_is_timed(self) -> "GridFile":
        for number, cell in enumerate(self.cells):
            if {steps.draft for steps in cell.drafts} != set(self.drafts):
                raise ValueError(f"the drafts of cells.{number} differ from models")
        return self

    @property
    def drafts(self) -> list[str]:
        return [name for name in self.models if name != TARGET]

    @property
    def ks(self) -> list[int]:
        return self.cells[0].ks

    def name_of(self, fingerprint: str) -> str | None:
        return next((name for name in self.drafts if self.models[name].fingerprint == fingerprint), None)

    @property
    def where(self) -> str:
        target = self.models[TARGET]
        return f"a {machine_words(self.provenance.hardware, target.device, self.threads)} in {target.dtype}"


def read_grid_file(path: Path) -> GridFile:
    """Read a grid of step times; a UserError names the file and the field."""
    return read_typed(path, TypeAdapter(GridFile), "Pass a file written by `widedraft benchmark --grid --out`.")
