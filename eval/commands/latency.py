"""`widedraft latency`: its settings, and what it does. Imports torch only when it runs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import BeforeValidator, Field, model_validator

from architectures.errors import UserError
from architectures.files.section import Section
from architectures.pages.markdown import markdown
from architectures.settings.flags import Flag
from architectures.settings.holding import TIMED, without_placing
from architectures.settings.kinds import (
    AUTO,
    MOST,
    BatchSizes,
    Capture,
    Compile,
    Confidence,
    Contexts,
    Drafts,
    Lookaheads,
    NumberType,
    NumThreads,
    Once,
    OutFile,
    Plot,
    Rehash,
    Repeats,
    Seed,
    Target,
    TargetBits,
)
from eval.commands.steps import how_asked, one_way
from eval.tasks import PromptWords

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from architectures.shapes.shape import Shape
    from eval.acceptance.estimates import Resampling
    from eval.records.grid import GridFigures

NUM_RESAMPLES = 2000
LEAST_DEPTHS = 3  # a line through fewer says nothing


def parameter_count(text: str) -> int:
    """290M -> 290,000,000."""
    number = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([MB])", text)
    if number is None or float(number[1]) == 0:
        raise ValueError(f"must be a number above 0 of M or B, as 290M or 1.3B, got {text[:80]!r}.")
    return round(float(number[1]) * {"M": 1e6, "B": 1e9}[number[2]])


Parameters = Annotated[
    tuple[Annotated[int, BeforeValidator(parameter_count, json_schema_input_type=str)], ...],
    Once,
    TargetBits,
    Flag(metavar="N", absent="a quarter and an eighth of the target's"),
]


class LatencySettings(Section):
    """Which steps are timed, and how often."""

    target: Target
    drafts: Drafts = ()
    shapes: Annotated[
        tuple[Annotated[int, Field(ge=1, le=MOST)], ...] | None, Flag(metavar="LAYERS", absent="1 2 4 ...")
    ] = Field(
        default=None,
        description="Measure untrained drafts of equal size in place of --drafts, one for each number of layers.",
    )
    parameters: Parameters = Field(default=(), description="Sizes of --shapes, as 290M or 1.3B.")
    vocabulary: Annotated[
        Annotated[int, Field(ge=1, le=MOST, description="Ids that the drafts of --shapes can say.")] | None,
        Flag(absent="all"),
    ] = None
    prompts: PromptWords = ()  # they fill the caches
    batch_sizes: BatchSizes = (1, 4)
    contexts: Contexts = (128, 1024)
    lookaheads: Lookaheads = Field(default=(1, 4), description="Numbers of draft tokens verified, each once.")
    repeats: Repeats = Field(default=30, description="Repetitions of every step.")
    target_bits: TargetBits = None
    compile: Compile = Field(default=False, description="Measure compiled steps too: half a minute a shape.")
    capture: Capture = Field(default=False, description="Measure captured steps too: CUDA graphs, on a GPU.")
    dtype: NumberType = AUTO
    num_threads: NumThreads = None
    confidence: Confidence = 0.95
    seed: Seed = Field(default=17, description="Seed of the order of steps.")
    rehash: Rehash = False
    out: OutFile = None
    plot: Plot = Field(default=None, description="Draw the step times of --shapes.")
    left_out: ClassVar = without_placing(TIMED)

    _one_way = model_validator(mode="after")(one_way)

    @model_validator(mode="after")
    def _plain_weights(self) -> "LatencySettings":
        """Packed ones are neither compiled nor captured."""
        for name in ("compile", "capture"):
            if getattr(self, name) and self.target_bits is not None:
                raise UserError(f"--{name} measures steps of plain weights: leave --target-bits away, or --{name}.")
        return self

    @model_validator(mode="after")
    def _enough_repeats(self) -> "LatencySettings":
        from eval.acceptance.intervals import least_units

        least = least_units(self.confidence)
        if self.repeats < least:
            raise UserError(
                f"--repeats must be at least {least}, or no median has an interval at confidence "
                f"{self.confidence:g}; got {self.repeats}."
            )
        return self

    @model_validator(mode="after")
    def _shapes_say_something_of_depth(self) -> "LatencySettings":
        if self.shapes is None:
            self._refuse_without_shapes()
        elif self.target_bits is not None:
            raise UserError(
                "--target-bits packs a target beside its drafts, --shapes are built as it is: leave one away."
            )
        elif self.drafts:
            raise UserError("--shapes measures untrained drafts: leave --drafts away, or leave --shapes away.")
        elif self.shapes and len(set(self.shapes)) < max(LEAST_DEPTHS, len(self.shapes)):
            named = " ".join(map(str, self.shapes))
            raise UserError(f"--shapes {named}: name at least {LEAST_DEPTHS} numbers of layers, each once.")
        return self

    def _refuse_without_shapes(self) -> None:
        """Raise UserError for what only shapes have."""
        if self.parameters:
            raise UserError("--parameters are the sizes of --shapes: give --shapes too.")
        if self.vocabulary is not None:
            raise UserError("--vocabulary is of the drafts of --shapes: give --shapes too.")
        if self.plot is not None:
            raise UserError("--plot draws the step times of --shapes: give --shapes too.")


def latency(settings: LatencySettings) -> None:
    """Measure, print and perhaps write."""
    from architectures.files.atomic import write_bytes
    from eval.commands.depth_and_width_plot import shapes_plot
    from eval.commands.latency_page import grid_page
    from eval.models.identity import model_facts
    from eval.records.grid import TARGET, GridFile, GridModel
    from eval.scorecard_schema import Provenance, write_record

    models, text_ids = target_and_drafts(settings)
    described = {
        name: GridModel(**model_facts(Path(str(model.name_or_path)), model), device=str(model.device))
        for name, model in models.items()
    }
    if settings.target_bits is not None:
        described[TARGET] = replace(described[TARGET], dtype=f"{settings.target_bits} bits")
        print(f"The target's linear layers are packed into {settings.target_bits} bits a weight.\n")
    if settings.shapes is None:
        record = measured(settings, models, text_ids)
    else:
        record = measured_shapes(settings, models[TARGET], text_ids)
    print(markdown(*grid_page(record), level=2))
    if settings.plot is not None:
        write_bytes(shapes_plot(record), settings.plot)
    if settings.out is not None:
        write_record(GridFile(**vars(record), models=described, provenance=Provenance.of_this_process()), settings.out)
        print(f"\n{settings.out}: the figures")


def measured(
    settings: LatencySettings, models: Mapping[str, "PreTrainedModel"], text_ids: Sequence[int]
) -> "GridFigures":
    """The figures of the grid."""
    from eval.latency.grid import Grid, measure_grid
    from eval.latency.memory import require_memory
    from eval.latency.threads import chosen_threads
    from eval.records.grid import TARGET

    for batch, context in product(settings.batch_sizes, settings.contexts):
        require_memory(models, batch=batch, context=context)
    prefill = settings.shapes is None  # of shapes a step is asked, and reading takes longer than all of its steps
    grid = Grid(
        settings.batch_sizes,
        settings.contexts,
        settings.lookaheads,
        settings.repeats,
        how_asked(settings),
        prefill=prefill,
    )
    with chosen_threads(settings.num_threads, lambda: models[TARGET]) as threads:
        figures = measure_grid(models, text_ids, grid, resampling_of(settings))
        return replace(figures, evidence=threads.noted(figures.evidence))


def measured_shapes(settings: LatencySettings, target: "PreTrainedModel", text_ids: Sequence[int]) -> "GridFigures":
    """The record of the grid of a target and untrained drafts, with what it says of depth and width."""
    from architectures.shapes.equal_shapes import equal_shapes
    from eval.latency.depth_and_width import with_depth_and_width
    from eval.latency.untrained import source_shape, untrained_models
    from eval.records.grid import TARGET

    source = source_shape(target)
    shapes = equal_shapes(with_head_of(source, settings.vocabulary), settings.shapes or (), settings.parameters)
    drafts = untrained_models(target, [shape.shape for shape in shapes])
    models = {TARGET: target, **{shape.name: draft for shape, draft in zip(shapes, drafts, strict=True)}}
    return with_depth_and_width(measured(settings, models, text_ids), shapes, source, resampling_of(settings))


def with_head_of(source: "Shape", rows: int | None) -> "Shape":
    """A shape whose output head has so many ids alone; the shape itself where that is None.

    Raises:
        UserError: If there are no more ids than that.
    """
    if rows is None:
        return source
    if not 0 < rows < source.vocab:
        raise UserError(
            f"--vocabulary must be from 1 to {source.vocab - 1}, of the target's {source.vocab}; got {rows}."
        )
    return replace(source, head_vocab=rows, tied=False)


def resampling_of(settings: LatencySettings) -> "Resampling":
    from eval.acceptance.estimates import Resampling

    return Resampling(settings.confidence, NUM_RESAMPLES, settings.seed)


def target_and_drafts(settings: LatencySettings) -> tuple[dict[str, "PreTrainedModel"], list[int]]:
    """The target and its drafts by name, and the text that fills their caches."""
    from architectures.targets.target import require_whole_head, resolve_checkpoint
    from eval.checks.loaded_pair import prompts_of
    from eval.models.loading import load_model, load_tokenizer, require_same_tokenizer
    from eval.prompts import render_prompt
    from eval.records.grid import TARGET

    folder = resolve_checkpoint(settings.target)
    require_whole_head(folder)
    drafts = [resolve_checkpoint(name) for name in settings.drafts]
    for draft in drafts:
        require_same_tokenizer(folder, draft)
    tokenizer, dtype = load_tokenizer(folder), settings.dtype
    text_ids = [
        token for prompt in prompts_of(settings.prompts, None) for token in render_prompt(tokenizer, prompt.messages)
    ]
    names = ["draft"] if len(drafts) == 1 else [f"draft {number}" for number in range(1, len(drafts) + 1)]
    folders = {TARGET: folder, **dict(zip(names, drafts, strict=True))}
    bits = {} if settings.target_bits is None else {TARGET: settings.target_bits}
    return {name: load_model(path, dtype=dtype, bits=bits.get(name)) for name, path in folders.items()}, text_ids
