"""`widedraft verify`, `quality` and `compare`: their settings, and what they do. Imports torch only when they run."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from pydantic import AfterValidator, Field, model_validator

from architectures.errors import UserError
from architectures.files.section import Section
from architectures.settings.flags import Flag
from architectures.settings.kinds import (
    AUTO,
    MOST,
    Adaptive,
    BatchSize,
    Capture,
    Compile,
    DeviceMemoryGib,
    Draft,
    HostMemoryGib,
    LeastChance,
    LeastConfidence,
    Lookahead,
    MaxNewTokens,
    MinP,
    NumberType,
    NumPrompts,
    NumThreads,
    ProposeDoubted,
    Rehash,
    RepetitionPenalty,
    SampledTemperature,
    Seed,
    Target,
    TargetBits,
    TargetPlacement,
    Temperature,
    TopK,
    TopP,
    no_folder,
)
from eval.commands.steps import held_well, holding_of, how_asked, one_end, one_way, opener_of, speculation_of
from eval.config import SamplingConfig, sampling_asked
from eval.tasks import PromptWords

if TYPE_CHECKING:
    from eval.checks.loaded_pair import LoadedPair
    from eval.checks.verify import Finding
    from eval.proposing.policy import ProposalPolicy
    from eval.rounds.round_trace import Run

RoundsFile = Annotated[
    Path | None,
    Field(
        description="Write every round decoded with the draft as JSON lines; `widedraft rounds FILE` prints their "
        "figures."
    ),
    AfterValidator(no_folder),
    Flag(metavar="FILE"),
]
Checks = Annotated[
    tuple[str, ...],
    Field(strict=False, description="Questions to ask, of each kind once."),
    Flag(metavar="gsm8k[=FILE]|multiplication", is_repeated=True),
]
AnyPair = TypeVar("AnyPair", bound="VerifySettings | QualitySettings | CompareSettings")


def rehash_has_use(settings: AnyPair) -> AnyPair:
    """The settings; UserError where fingerprints are to be made anew and none is made."""
    if settings.rehash and settings.rounds is None and not getattr(settings, "beside", False):  # verify alone has it
        raise UserError("--rehash is for the fingerprints that --rounds writes: give --rounds FILE, or leave it out.")
    return settings


class VerifySettings(Section):
    """What is verified of a pair, and how."""

    target: Target
    draft: Draft
    prompts: PromptWords = ()
    num_prompts: NumPrompts = 8
    max_new_tokens: MaxNewTokens = 64
    lookahead: Lookahead = 4
    adaptive: Adaptive = False
    least_confidence: LeastConfidence = 0.0
    least_chance: LeastChance = 0.0
    propose_doubted: ProposeDoubted = False
    temperature: SampledTemperature = Field(default=1.0, description="Sampling temperature of the distribution checks.")
    top_p: TopP = 1.0
    top_k: TopK = None
    min_p: MinP = 0.0
    repetition_penalty: RepetitionPenalty = 1.0
    samples: Annotated[int, Field(ge=1, le=MOST, description="Texts drawn for each prompt and rule.")] = 4
    beside: Annotated[
        bool, Field(description="Look up beside the draft, by the policies `widedraft lookup` wrote there.")
    ] = False
    target_placement: TargetPlacement = "whole"
    target_device_memory_gib: DeviceMemoryGib = None
    target_host_memory_gib: HostMemoryGib = None
    target_bits: TargetBits = None
    compile: Compile = False
    capture: Capture = False
    dtype: NumberType = "float32"
    rounds: RoundsFile = None
    seed: Seed = 17
    rehash: Rehash = False

    _one_way = model_validator(mode="after")(one_way)
    _held_well = model_validator(mode="after")(held_well)
    _one_end = model_validator(mode="after")(one_end)
    _rehash_has_use = model_validator(mode="after")(rehash_has_use)


def verify(settings: VerifySettings) -> None:
    """Print every finding; exit code 1 where a law does not hold."""
    from eval.checks.loaded_pair import load_pair, prompts_of
    from eval.checks.verify import Verification, verify_pair
    from eval.decoding.sampling import Sampling

    prompts = prompts_of(settings.prompts, settings.num_prompts)
    pair = load_pair(settings.target, settings.draft, dtype=settings.dtype, holding=holding_of(settings))
    ids = [pair.rendered(prompt) for prompt in prompts]
    pair.require_context(ids, settings.max_new_tokens)
    wanted = Verification(
        max_new_tokens=settings.max_new_tokens,
        stop_ids=pair.stop_ids,
        speculation=speculation_of(settings, settings.lookahead),
        sampling=Sampling.of(settings.temperature, sampling_asked(settings)),
        samples=settings.samples,
        seed=settings.seed,
        opener=opener_of(settings),
        lookup_policies=policies_of(settings, pair) if settings.beside else {},
    )
    holds, runs = tell(verify_pair(pair.target, pair.draft, ids, wanted))
    write_rounds(settings, pair, runs, [prompt.source for prompt in prompts])
    print(f"{settings.draft} drafts losslessly for {settings.target}: {'yes' if holds else 'NO'}")
    if not holds:
        raise SystemExit(1)


def policies_of(settings: VerifySettings, pair: "LoadedPair") -> "dict[float, ProposalPolicy]":
    """The draft's policies at the temperatures that are checked."""
    from eval.policies.policy_file import read_policies

    file = read_policies(*pair.folders)
    asked = {0.0: SamplingConfig(), settings.temperature: sampling_asked(settings)}
    return {temperature: file.at(temperature, each, pair.folders[1]).policy for temperature, each in asked.items()}


class QualitySettings(Section):
    """Which questions are asked with and without a draft."""

    target: Target
    draft: Draft
    checks: Checks
    num_prompts: NumPrompts = Field(default=100, description="Questions of a kind at most.")
    max_new_tokens: Annotated[MaxNewTokens | None, Flag(absent="256 of gsm8k, 8 of multiplication")] = None
    lookahead: Lookahead = 4
    adaptive: Adaptive = False
    least_confidence: LeastConfidence = 0.0
    least_chance: LeastChance = 0.0
    propose_doubted: ProposeDoubted = False
    batch_size: BatchSize = 16
    target_placement: TargetPlacement = "whole"
    target_device_memory_gib: DeviceMemoryGib = None
    target_host_memory_gib: HostMemoryGib = None
    target_bits: TargetBits = None
    compile: Compile = False
    capture: Capture = False
    dtype: NumberType = "float32"
    rounds: RoundsFile = None
    seed: Seed = Field(default=17, description="Seed of the numbers to multiply.")
    rehash: Rehash = False

    _one_way = model_validator(mode="after")(one_way)
    _held_well = model_validator(mode="after")(held_well)
    _one_end = model_validator(mode="after")(one_end)
    _rehash_has_use = model_validator(mode="after")(rehash_has_use)

    @model_validator(mode="after")
    def _kinds_once(self) -> "QualitySettings":
        kinds = [word.partition("=")[0] for word in self.checks]
        if len(set(kinds)) < len(kinds):
            raise UserError(f"--checks must name each kind once, got {' and '.join(self.checks)}. Ask them one by one.")
        if "seed" in self.model_fields_set and "multiplication" not in kinds:
            raise UserError("--seed must be left out: it draws the numbers of multiplication, which is not asked.")
        return self


def quality(settings: QualitySettings) -> None:
    """Print how many answers are right alone and with the draft; exit code 1 where the draft changed a text."""
    from eval.checks.exams import open_exam
    from eval.checks.loaded_pair import load_pair
    from eval.checks.quality import Asking, check_answers

    exams = [open_exam(word, settings.num_prompts, seed=settings.seed) for word in settings.checks]
    pair = load_pair(settings.target, settings.draft, dtype=settings.dtype, holding=holding_of(settings))
    asking = Asking(
        settings.max_new_tokens,
        speculation_of(settings, settings.lookahead),
        settings.batch_size,
        opener_of(settings),
    )
    holds, runs_of_exams = tell(check_answers(pair, exam, asking) for exam in exams)
    sources: list[str] = []
    runs: list[Run] = []
    for exam, run in zip(exams, runs_of_exams, strict=True):
        runs.append(replace(run, prompt_indices=[len(sources) + index for index in run.prompt_indices]))
        sources += [question.prompt.source for question in exam.questions]
    write_rounds(settings, pair, runs, sources)
    print(f"{settings.draft} leaves the answers of {settings.target} as they are: {'yes' if holds else 'NO'}")
    if not holds:
        raise SystemExit(1)


def tell(findings: Iterable["Finding"]) -> tuple[bool, list["Run"]]:
    """Print findings as they come; whether all hold, and what was decoded for them."""
    holds, runs = True, []
    for finding in findings:
        holds &= finding.holds
        runs.append(finding.run)
        print(f"{'holds' if finding.holds else 'FAILS':6} {finding.name}: {finding.detail}", flush=True)
    return holds, runs


class CompareSettings(Section):
    """What is answered with and without a draft."""

    target: Target
    draft: Draft
    prompts: PromptWords = ()
    max_new_tokens: MaxNewTokens = 128
    lookahead: Lookahead = 4
    adaptive: Adaptive = False
    least_confidence: LeastConfidence = 0.0
    least_chance: LeastChance = 0.0
    propose_doubted: ProposeDoubted = False
    temperature: Temperature = 0.0
    top_p: TopP = 1.0
    top_k: TopK = None
    min_p: MinP = 0.0
    repetition_penalty: RepetitionPenalty = 1.0
    target_placement: TargetPlacement = "whole"
    target_device_memory_gib: DeviceMemoryGib = None
    target_host_memory_gib: HostMemoryGib = None
    target_bits: TargetBits = None
    compile: Compile = False
    capture: Capture = False
    dtype: NumberType = AUTO
    num_threads: NumThreads = None
    rounds: RoundsFile = None
    seed: Seed = 17
    rehash: Rehash = False

    _one_way = model_validator(mode="after")(one_way)
    _held_well = model_validator(mode="after")(held_well)
    _one_end = model_validator(mode="after")(one_end)
    _rehash_has_use = model_validator(mode="after")(rehash_has_use)


def compare(settings: CompareSettings) -> None:
    """Answer prompts from a file, or from the keyboard, with and without the draft."""
    from rich.console import Console

    from eval.checks.compare import Comparison, compare, compared_run, typed_prompts
    from eval.checks.loaded_pair import load_pair, prompts_of
    from eval.decoding.sampling import Sampling
    from eval.decoding.texts import Limits, Seeds
    from eval.latency.threads import chosen_threads

    console = Console()
    from_file = prompts_of(settings.prompts, count=None) if settings.prompts else None
    pair = load_pair(settings.target, settings.draft, dtype=settings.dtype, holding=holding_of(settings))
    wanted = Comparison(
        Limits(settings.max_new_tokens, pair.stop_ids),
        speculation_of(settings, settings.lookahead),
        Sampling.of(settings.temperature, sampling_asked(settings)),
        Seeds.of(settings.seed),
        opener_of(settings),
    )
    with chosen_threads(settings.num_threads, lambda: pair.target):
        answered = compare(pair, from_file or typed_prompts(console), wanted, console)
        run = compared_run(wanted, [text for _, text in answered])
        write_rounds(settings, pair, [run], [source for source, _ in answered])


def write_rounds(
    settings: "VerifySettings | QualitySettings | CompareSettings",
    pair: "LoadedPair",
    runs: Sequence["Run"],
    prompts: Sequence[str],
) -> None:
    """Write the trace of some runs if a file is named, and say so."""
    path = settings.rounds
    if path is None:
        return
    from eval.rounds.round_trace import write_round_trace

    target, draft = pair.identities()
    device, how = str(pair.target.device), how_asked(settings)
    write_round_trace(path, runs, prompts, target=target, draft=draft, device=device, how=how)
    print(f"{path}: {sum(len(text.rounds) for run in runs for text in run.decoded)} rounds")
