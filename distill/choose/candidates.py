"""Candidate shapes of `widedraft choose`: the recipe's architecture at other depths, widths and heads. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.requested_shape import ArchitectureConfig, draft_shape, size, written_size
from architectures.settings import MOST, Flag, Once, flag_of
from architectures.shapes import Shape
from architectures.vocabulary import VocabularyConfig, with_requested_head
from distill.checkpoints.checkpoint_files import TrustCheckpoints
from distill.distributed import Processes
from distill.recipe.recipe import Recipe, RecipeSettings
from distill.recipe.sections import Duration, split_time
from distill.run import Run

DEPTHS = (1, 2, 3, 4, 6, 8, 12)
ALL = "all"
AXES = {"hidden": "hidden_sizes", "intermediate": "intermediate_sizes", "heads": "heads"}  # settings, by recipe key
REPLACED = ("shape", "layers", "hidden", "intermediate", "heads", "kv_heads", "stages", "plan")
FACTOR, RUNGS = 2, 3  # each training run is twice as long; three of them unless --longest is given


def known_width(word: int | str) -> int | str:
    """Parse a number, a share of the target's as in 0.5x, or "all"."""
    value = int(word) if isinstance(word, str) and word.isdecimal() and len(word) <= 12 else word
    return value if value == ALL else size(value)


WidthSize = Annotated[int | str, BeforeValidator(known_width, json_schema_input_type=str)]
Widths = Annotated[tuple[WidthSize, ...], Once, Flag(metavar="N|0.5x|all", absent="the recipe's")]


class ChooseSettings(RecipeSettings):
    """Shapes to compare, and length of training."""

    trust_checkpoints: TrustCheckpoints = False
    processes: Processes = None
    layers: Annotated[tuple[Annotated[int, Field(ge=1, le=MOST)], ...], Flag(absent="1 2 3 4 6 8 12")] = Field(
        default=(), description="Numbers of layers."
    )
    vocabularies: Annotated[
        tuple[Annotated[int, Field(ge=1, le=MOST)] | Literal["all"], ...],
        Once,
        Flag(metavar="N|all", absent="the recipe's"),
    ] = Field(default=(), description="Vocabulary sizes, combined with every number of layers.")
    hidden_sizes: Widths = Field(default=(), description="Hidden sizes: numbers, or fractions of the target's.")
    intermediate_sizes: Widths = Field(default=(), description="Feed-forward widths, in the same form.")
    heads: Widths = Field(default=(), description="Query heads per layer, in the same form; kv_heads keep the ratio.")
    max_parameters: Annotated[int, Field(ge=1, le=10**13)] | None = Field(
        default=None, description="Skip candidates with more parameters."
    )
    batch_size: int = Field(default=1, ge=1, le=MOST, description="Batch size of timed steps.")
    context: int = Field(default=128, ge=1, le=MOST, description="Context length of timed steps, in tokens.")
    duration: Annotated[Duration, Flag(metavar="T")] = Field(
        default="100ba", description="Length of the first training runs, in units of distill.max_duration."
    )
    longest: Annotated[Duration | None, Flag(metavar="T", absent="4 times --duration")] = Field(
        default=None, description="Maximum run length; each round doubles it for the remaining candidates."
    )
    untrained: bool = Field(default=False, description="Only measure step times.")
    out: Annotated[Path | None, Flag(metavar="FILE", absent="<run>/choose/recipe.yaml")] = Field(
        default=None, description="Recipe of the best candidate."
    )

    @property
    def lengths(self) -> list[str]:
        """Lengths of the training runs from their start: successive halving with factor 2.

        Source: Jamieson and Talwalkar 2016 (arXiv 1502.07943).
        """
        value, unit = split_time(self.duration)
        last = value * FACTOR ** (RUNGS - 1) if self.longest is None else split_time(self.longest)[0]
        lengths = [value]
        while lengths[-1] < last:
            lengths.append(min(FACTOR * lengths[-1], last))
        return [self.duration, *(f"{int(length)}{unit}" for length in lengths[1:])]

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> "ChooseSettings":
        first, unit = split_time(self.duration)
        last, last_unit = split_time(self.longest or self.duration)
        if last_unit != unit or last < first:
            raise UserError(
                f"--longest {self.longest}: must be in {unit} and at least --duration {self.duration}. Change one."
            )
        ignored = [name for name in ("duration", "longest", "out") if name in self.model_fields_set]
        if self.untrained and ignored:
            raise UserError(f"{flag_of(ignored[0])}: has no effect with --untrained. Remove one of the two.")
        return self


@dataclass(frozen=True)
class Candidate:
    """A shape to compare: its name in tables and directories, its size, and the recipe that makes it."""

    name: str
    shape: Shape
    recipe: Recipe


@dataclass(frozen=True)
class LeftOut:
    """A shape that is not compared, and why."""

    candidate: str
    reason: str


def candidates_of(recipe: Recipe, source: Shape, settings: ChooseSettings) -> tuple[list[Candidate], list[LeftOut]]:
    """Return the recipe at each depth, width and head, from shallow to deep; and the shapes that are left out.

    `source` is the shape that drafts are pruned from, with the target's vocabulary.

    Raises:
        UserError: If no shape is left, or a depth is impossible at any width.
    """
    FAMILIES[source.family].reject("choose", "widedraft choose")
    wanted = recipe.architecture
    if wanted.method == "learned_masks":
        raise UserError(
            "architecture.method=learned_masks trains masks for every shape, which takes too long. Choose with "
            "architecture.method=greedy, then set the shape."
        )
    if wanted.plan is not None:
        raise UserError("architecture.plan has only one shape. Set sizes instead.")
    depths = sorted(set(settings.layers)) or [depth for depth in DEPTHS if depth < source.layers]
    own = {name: getattr(draft_shape(source, wanted), name) for name in (*AXES, "kv_heads")}
    widths = [dict(zip(AXES, each, strict=True)) for each in product(*(sizes(settings, own, source, a) for a in AXES))]
    found: list[Candidate] = []
    out: list[LeftOut] = []
    for depth, width, vocabulary in product(depths, widths, vocabularies(recipe, source, settings)):
        changed = [f"-{value}-{axis}" for axis, value in width.items() if value != own[axis]]
        body = f"{depth}-layers{''.join(changed)}"
        sizes_set = {**dict.fromkeys(REPLACED), "layers": depth, **with_kv_heads(width, own, source)}
        architecture = wanted.model_copy(update=sizes_set)
        try:
            shape = with_requested_head(draft_shape(source, architecture), vocabulary)
        except UserError as error:
            if len(widths) == 1 or depth > source.layers:
                raise
            out.append(LeftOut(body, f"cannot be pruned: {error}"))
            continue
        name, count = body if vocabulary is None else f"{body}-{shape.head_vocab}-ids", shape.parameters()
        if settings.max_parameters is not None and count > settings.max_parameters:
            out.append(LeftOut(name, f"has {count:,} parameters, more than {settings.max_parameters:,}"))
            continue
        changes: dict[str, str | ArchitectureConfig] = {
            "run_name": f"{recipe.run_name}-{name}",
            "run_dir": str(trials_folder(Run.of(recipe)) / name),
            "architecture": architecture.model_copy(update={"vocabulary": vocabulary}),
        }
        found.append(Candidate(name, shape, recipe.model_copy(update=changes)))
    if not found:
        raise UserError(f"{out[0].candidate}, like all candidates: {out[0].reason} Choose other sizes.")
    return found, out


def trials_folder(run: Run) -> Path:
    return run.folder / "choose"


def sizes(settings: ChooseSettings, own: Mapping[str, int], source: Shape, axis: str) -> list[int]:
    """Return the sizes of one axis, ascending; the recipe's own if none are given."""
    most = getattr(source, axis)
    words: Sequence[int | str] = getattr(settings, AXES[axis])
    found = {most if word == ALL else written_size(axis, word, most) for word in words}
    if found and max(found) > most:
        raise UserError(f"{flag_of(AXES[axis])} {max(found)}: exceeds the target's {most}. Choose smaller sizes.")
    return sorted(found) or [own[axis]]


def with_kv_heads(widths: Mapping[str, int], own: Mapping[str, int], source: Shape) -> dict[str, int]:
    """Return widths that differ from the source's, with key/value heads in the source's ratio, or the recipe's."""
    group = source.heads // source.kv_heads
    follow = own["kv_heads"] if widths["heads"] == own["heads"] else max(1, widths["heads"] // group)
    every = {**widths, "kv_heads": follow}
    narrow = {name for name, value in every.items() if value != getattr(source, name)}
    return {name: every[name] for name in every if name in narrow or (name == "kv_heads" and "heads" in narrow)}


def vocabularies(recipe: Recipe, source: Shape, settings: ChooseSettings) -> list[VocabularyConfig | None]:
    """Return architecture.vocabulary sections, from few ids to the whole head; the recipe's if no sizes are given."""
    own = recipe.architecture.vocabulary
    if not settings.vocabularies:
        return [own]
    if source.head_vocab:
        raise UserError(f"--vocabularies: the source is already reduced to {source.head_vocab} ids. Remove it.")
    counts = sorted(number for number in settings.vocabularies if number != ALL)
    if counts and counts[-1] >= source.vocab:
        raise UserError(f"--vocabularies {counts[-1]}: the target has {source.vocab} ids. Choose fewer, or all.")
    by = own.origin if own is not None else "text" if recipe.distill.train_on == "text" else "responses"
    found: list[VocabularyConfig | None] = [
        VocabularyConfig.model_validate({"size": count, "from": by}) for count in counts
    ]
    return [*found, None] if ALL in settings.vocabularies else found
