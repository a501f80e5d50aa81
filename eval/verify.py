"""`widedraft verify`: losslessness, task accuracy, or coloured output with and without the draft. Torch only on use."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from architectures.errors import UserError
from architectures.settings import (
    MOST,
    BatchSize,
    DeviceMemoryGib,
    Draft,
    Flag,
    Holding,
    Lookahead,
    MaxNewTokens,
    NumPrompts,
    PairDtype,
    TargetPlacement,
    Temperature,
    flag_of,
)
from eval.cli import DecodingFlags

if TYPE_CHECKING:
    from eval.lossless import LosslessFinding

Accuracy = Annotated[
    tuple[str, ...],
    Field(
        strict=False,
        description="Answer these questions with and without the draft instead: accuracy, and whether a text changed.",
    ),
    Flag(metavar="gsm8k[=FILE]|multiplication", is_repeated=True),
]
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class VerifySettings(DecodingFlags):
    """Flags of `widedraft verify`."""

    draft: Draft
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
    temperature: Annotated[Temperature | None, Flag(absent="1; 0 with --show")] = None
    samples: Annotated[int, Field(ge=1, le=MOST, description="Texts sampled per prompt and acceptance method.")] = 4
    batch_size: BatchSize = Field(default=16, description="Questions of --accuracy decoded together.")
    target_placement: TargetPlacement = "whole"
    target_device_memory_gib: DeviceMemoryGib = None
    dtype: PairDtype = "float32"

    @property
    def holding(self) -> Holding:
        return Holding(self.target_placement, self.target_device_memory_gib, self.target_bits)

    @model_validator(mode="after")
    def _modes(self) -> "VerifySettings":
        if (mistake := self.holding.mistake) is not None:
            raise UserError(f"--target-placement: {mistake}")
        if self.target_placement != "whole" and self.how != "eager":
            raise UserError("--capture needs weights that stay where they are. Leave it out, or --target-placement.")
        if self.accuracy and self.show:
            raise UserError("--accuracy and --show exclude each other. Run the command once for each.")
        unused = ["batch_size"]
        if self.accuracy:
            unused = ["prompts", "samples", *SAMPLING]
            unused += [] if "multiplication" in self.accuracy else ["seed"]  # seeds the factors
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


def check_lossless(settings: VerifySettings) -> Iterable["LosslessFinding"]:
    """Check greedy text, the target as its own draft, and the distribution of sampled texts by each method."""
    from eval.decoding.texts import Limits
    from eval.lossless import Verification, check_lossless
    from eval.pair import load_pair, prompts_of

    prompts = prompts_of(settings.prompts, settings.num_prompts or 8)
    pair = load_pair(settings.target, settings.draft, dtype=settings.dtype, holding=settings.holding)
    ids, max_new_tokens = [pair.rendered(prompt) for prompt in prompts], settings.max_new_tokens or 64
    pair.require_context(ids, max_new_tokens)
    wanted = Verification(
        Limits(max_new_tokens, pair.stop_ids),
        settings.speculation(settings.lookahead),
        settings.sampling(1.0 if settings.temperature is None else settings.temperature),
        settings.samples,
        settings.seed,
        settings.new_opener(),
    )
    return check_lossless((pair.target, pair.draft), ids, wanted)


def check_accuracy(settings: VerifySettings) -> Iterable["LosslessFinding"]:
    from eval.accuracy import check_accuracy, load_benchmark
    from eval.pair import load_pair

    benchmarks = [load_benchmark(word, settings.num_prompts or 100, seed=settings.seed) for word in settings.accuracy]
    pair = load_pair(settings.target, settings.draft, dtype=settings.dtype, holding=settings.holding)
    opener = settings.new_opener()
    for benchmark in benchmarks:
        yield check_accuracy(
            pair,
            benchmark,
            max_new_tokens=settings.max_new_tokens,
            speculation=settings.speculation(settings.lookahead),
            batch_size=settings.batch_size,
            opener=opener,
        )


def show(settings: VerifySettings) -> None:
    from rich.console import Console

    from eval.decoding.texts import Limits
    from eval.lossless import Verification
    from eval.pair import load_pair, prompts_of
    from eval.side_by_side import show, typed_prompts

    console = Console()
    from_file = prompts_of(settings.prompts, settings.num_prompts) if settings.prompts else None
    pair = load_pair(settings.target, settings.draft, dtype=settings.dtype, holding=settings.holding)
    wanted = Verification(
        limits=Limits(settings.max_new_tokens or 128, pair.stop_ids),
        speculation=settings.speculation(settings.lookahead),
        sampling=settings.sampling(settings.temperature or 0.0),
        seed=settings.seed,
        opener=settings.new_opener(),
    )
    prompts = typed_prompts(console) if from_file is None else from_file
    show(pair, prompts, wanted, console)
