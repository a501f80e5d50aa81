"""`widedraft verify`: losslessness, task accuracy with and without the draft, or coloured output. Torch only on use."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from architectures.errors import UserError
from architectures.files.section import Section
from architectures.settings.flags import Flag, flag_of
from architectures.settings.kinds import (
    MOST,
    Adaptive,
    BatchSize,
    Capture,
    Compile,
    DeviceMemoryGib,
    Draft,
    DraftPMin,
    HostMemoryGib,
    Lookahead,
    MaxNewTokens,
    MinP,
    NumberType,
    NumPrompts,
    RepetitionPenalty,
    Seed,
    Target,
    TargetBits,
    TargetPlacement,
    Temperature,
    TopK,
    TopP,
)
from eval.commands.steps import held_well, holding_of, one_end, one_way, opener_of, speculation_of
from eval.config import sampling_asked
from eval.tasks import PromptWords

if TYPE_CHECKING:
    from eval.lossless import Finding

Accuracy = Annotated[
    tuple[str, ...],
    Field(
        strict=False,
        description="Answer these questions with and without the draft instead: accuracy, and whether a text changed.",
    ),
    Flag(metavar="gsm8k[=FILE]|multiplication", is_repeated=True),
]
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class VerifySettings(Section):
    """What is verified of a pair, and how."""

    target: Target
    draft: Draft
    prompts: PromptWords = ()
    accuracy: Accuracy = ()
    show: Annotated[
        bool,
        Field(description="Decode prompts (typed ones without --prompts) side by side, coloured by writer, instead."),
    ] = False
    num_prompts: Annotated[NumPrompts | None, Flag(absent="8; 100 with --accuracy; all with --show")] = None
    max_new_tokens: Annotated[
        MaxNewTokens | None, Flag(absent="64; 128 with --show; 256 of gsm8k, 8 of multiplication")
    ] = None
    lookahead: Lookahead = 4
    adaptive: Adaptive = False
    draft_p_min: DraftPMin = 0.0
    temperature: Annotated[Temperature | None, Flag(absent="1; 0 with --show")] = None
    top_p: TopP = 1.0
    top_k: TopK = None
    min_p: MinP = 0.0
    repetition_penalty: RepetitionPenalty = 1.0
    samples: Annotated[int, Field(ge=1, le=MOST, description="Texts sampled per prompt and acceptance method.")] = 4
    batch_size: BatchSize = Field(default=16, description="Questions of --accuracy decoded together.")
    target_placement: TargetPlacement = "whole"
    target_device_memory_gib: DeviceMemoryGib = None
    target_host_memory_gib: HostMemoryGib = None
    target_bits: TargetBits = None
    compile: Compile = False
    capture: Capture = False
    dtype: NumberType = "float32"
    seed: Seed = 17

    _one_way = model_validator(mode="after")(one_way)
    _held_well = model_validator(mode="after")(held_well)
    _one_end = model_validator(mode="after")(one_end)

    @model_validator(mode="after")
    def _modes(self) -> "VerifySettings":
        if self.accuracy and self.show:
            raise UserError("--accuracy and --show exclude each other. Run the command once for each.")
        unused = ["batch_size"]
        if self.accuracy:
            unused = ["prompts", "samples", *SAMPLING]
            unused += [] if "multiplication" in self.accuracy else ["seed"]  # it draws the factors
        elif self.show:
            unused = ["batch_size", "samples"]
        mode = "with --accuracy" if self.accuracy else "with --show" if self.show else "without --accuracy"
        for name in unused:
            if name in self.model_fields_set:
                raise UserError(f"{flag_of(name)} has no effect {mode}. Leave it out.")
        if self.temperature == 0 and not self.show:
            raise UserError(
                "--temperature must be above 0, got 0: it is of the sampled texts; greedy ones are checked too."
            )
        kinds = [word.partition("=")[0] for word in self.accuracy]
        if len(set(kinds)) < len(kinds):
            raise UserError(f"--accuracy must name each kind once, got {' '.join(self.accuracy)}.")
        return self


def verify(settings: VerifySettings) -> None:
    """Print every finding; exit code 1 if one fails."""
    if settings.show:
        show(settings)
        return
    findings = check_accuracy(settings) if settings.accuracy else check_lossless(settings)
    holds = True
    for finding in findings:
        holds &= finding.holds
        print(f"{'ok' if finding.holds else 'FAIL':4} {finding.name}: {finding.detail}", flush=True)
    print(f"lossless: {'yes' if holds else 'NO'} (target {settings.target}, draft {settings.draft})")
    if not holds:
        raise SystemExit(1)


def check_lossless(settings: VerifySettings) -> Iterable["Finding"]:
    """Greedy text, the target as its own draft, and the distribution of sampled texts by each method."""
    from eval.checks.loaded_pair import load_pair, prompts_of
    from eval.decoding.sampling import Sampling
    from eval.decoding.texts import Limits
    from eval.lossless import Verification, check_lossless

    prompts = prompts_of(settings.prompts, settings.num_prompts or 8)
    pair = load_pair(settings.target, settings.draft, dtype=settings.dtype, holding=holding_of(settings))
    ids, max_new_tokens = [pair.rendered(prompt) for prompt in prompts], settings.max_new_tokens or 64
    pair.require_context(ids, max_new_tokens)
    wanted = Verification(
        Limits(max_new_tokens, pair.stop_ids),
        speculation_of(settings, settings.lookahead),
        Sampling.of(1.0 if settings.temperature is None else settings.temperature, sampling_asked(settings)),
        settings.samples,
        settings.seed,
        opener_of(settings),
    )
    return check_lossless((pair.target, pair.draft), ids, wanted)


def check_accuracy(settings: VerifySettings) -> Iterable["Finding"]:
    """Accuracy with and without the draft on each kind of question."""
    from eval.accuracy import check_accuracy, load_benchmark
    from eval.checks.loaded_pair import load_pair

    benchmarks = [load_benchmark(word, settings.num_prompts or 100, seed=settings.seed) for word in settings.accuracy]
    pair = load_pair(settings.target, settings.draft, dtype=settings.dtype, holding=holding_of(settings))
    opener = opener_of(settings)
    for benchmark in benchmarks:
        yield check_accuracy(
            pair,
            benchmark,
            max_new_tokens=settings.max_new_tokens,
            speculation=speculation_of(settings, settings.lookahead),
            batch_size=settings.batch_size,
            opener=opener,
        )


def show(settings: VerifySettings) -> None:
    """Decode prompts from files, or from the keyboard, with and without the draft."""
    from rich.console import Console

    from eval.checks.loaded_pair import load_pair, prompts_of
    from eval.decoding.sampling import Sampling
    from eval.decoding.texts import Limits
    from eval.lossless import Verification
    from eval.side_by_side import show, typed_prompts

    console = Console()
    from_file = prompts_of(settings.prompts, settings.num_prompts) if settings.prompts else None
    pair = load_pair(settings.target, settings.draft, dtype=settings.dtype, holding=holding_of(settings))
    wanted = Verification(
        limits=Limits(settings.max_new_tokens or 128, pair.stop_ids),
        speculation=speculation_of(settings, settings.lookahead),
        sampling=Sampling.of(settings.temperature or 0.0, sampling_asked(settings)),
        seed=settings.seed,
        opener=opener_of(settings),
    )
    prompts = typed_prompts(console) if from_file is None else from_file
    show(pair, prompts, wanted, console)
