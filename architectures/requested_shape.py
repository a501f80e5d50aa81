"""Recipe sections `target` and `architecture`, and the draft's shape. No torch."""

import re
from dataclasses import replace
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from architectures.compatibility import serving_problems
from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.settings import BatchDtypeOrAuto, DeviceMemoryGib, Holding, Section, TargetBits, TargetPlacement
from architectures.shapes import NAMED_SHAPES, OtherShape, Shape
from architectures.vocabulary import VocabularyConfig


def named_shape(name: str) -> str:
    if name not in NAMED_SHAPES:
        near = get_close_matches(name, NAMED_SHAPES, n=1)
        hint = f"Did you mean {near[0]}?" if near else "`widedraft recipes --shapes` lists them."
        raise ValueError(f"must be a named shape, got {name!r}. {hint}")
    return name


ShapeName = Annotated[
    str, AfterValidator(named_shape), WithJsonSchema({"type": "string", "enum": sorted(NAMED_SHAPES)})
]


SHARE = r"^(0?\.\d+|1(\.0+)?)x$"


def size(value: Any) -> Any:
    """Validate a count, or a share of the target's as "0.5x"."""
    form = SHARE if isinstance(value, str) else r"\d+"
    if not re.fullmatch(form, str(value)) or not float(str(value).removesuffix("x")):
        raise ValueError(f"must be an integer > 0, or a fraction of the target's size such as 0.5x, got {value!r}.")
    return value


SIZES = ("layers", "hidden", "intermediate", "heads", "kv_heads")
OF_SOME = {"encoder_layers": "encoder", "experts": "experts"}  # sizes of parts that only some models have
GIVEN = ("plan", "shape", "stages", *SIZES, *OF_SOME)  # at least one of these must set the size of the draft
EXCLUSIVE = {"plan": ("shape", "stages", *SIZES, *OF_SOME), "shape": SIZES, "stages": ("layers",)}
Fraction = Annotated[str, Field(pattern=SHARE, title="a fraction of the target's size", examples=["0.5x", "1x"])]
Size = Annotated[Annotated[int, Field(ge=1)] | Fraction, BeforeValidator(size)]


class TargetConfig(Section):
    """The model the draft will draft for; while training it is the teacher."""

    path: str = Field(min_length=1, description="A local Hugging Face directory, a hub id, or a *.gguf file.")
    revision: str = Field(default="main", min_length=1, description="Branch, tag or commit of a hub id.")
    dtype: BatchDtypeOrAuto = Field(
        default="bfloat16",
        description="Dtype of the target's weights; auto is bfloat16 on a GPU and on CPUs that multiply faster in it, "
        "else float32.",
    )
    placement: TargetPlacement = "whole"
    device_memory_gib: DeviceMemoryGib = None
    bits: TargetBits = None

    @property
    def holding(self) -> Holding:
        """Placement of the target while it generates and teaches."""
        return Holding(self.placement, self.device_memory_gib, self.bits)

    @model_validator(mode="after")
    def _held_in_one_way(self) -> "TargetConfig":
        if (mistake := self.holding.mistake) is not None:
            raise ValueError(f"has conflicting settings: {mistake}")
        return self


class CalibrationConfig(Section):
    """Text that scores of layers, heads, neurons and channels are computed on, once for every shape."""

    text: str | None = Field(
        default=None,
        min_length=1,
        description="A text file, or JSON lines with prompts; null: the prompts of section data.",
    )
    tokens: int = Field(default=1024, ge=16, description="Number of calibration tokens; too little text is an error.")


class MasksConfig(Section):
    """How learned masks are trained, together with the target's weights, on the sequences of `text`."""

    max_duration: str = Field(
        default="400ba",
        pattern="^[1-9](?:_?[0-9]){0,14}ba$",
        title="a time in batches",
        examples=["3200ba"],
        description="Length of mask training: 10 % warm-up, then cosine to a tenth of the rates.",
    )
    global_train_batch_size: int = Field(default=32, ge=1, description="Sequences per step, over all processes.")
    weight_lr: float = Field(default=1e-4, gt=0, description="Peak learning rate of the weights.")
    mask_lr: float = Field(default=0.3, gt=0, description="Peak learning rate of masks and Lagrange multipliers.")


class ArchitectureConfig(Section):
    """The shape of the draft, and how the target's weights become it. Needs shape, plan, or at least one size."""

    shape: ShapeName | None = Field(default=None, description="A named shape; `widedraft recipes --shapes` lists them.")
    layers: Size | None = Field(
        default=None, description="Layers of the draft: a number, or a fraction of the target's (0.5x)."
    )
    hidden: Size | None = Field(default=None, description="Residual stream channels.")
    intermediate: Size | None = Field(default=None, description="Feed-forward neurons per layer.")
    heads: Size | None = Field(default=None, description="Query heads per layer.")
    kv_heads: Size | None = Field(
        default=None,
        description="Key/value heads per layer; null keeps the target's ratio.",
    )
    experts: Size | None = Field(default=None, description="Experts per layer of a mixture-of-experts draft.")
    encoder_layers: Size | None = Field(
        default=None,
        description="Encoder blocks of an encoder-decoder draft, evenly spaced; null keeps all.",
    )
    stages: list[int] | None = Field(
        default=None,
        min_length=2,
        description="Layers after each of several prunings ([16, 8, 5]); each is distilled before the next.",
    )
    source: str | None = Field(
        default=None,
        min_length=1,
        description="Directory or hub id (owner/name@revision) of the weights to prune, if not the target: an earlier "
        "draft, or a smaller model with its tokenizer.",
    )
    method: Literal["first_last", "evenly_spaced", "block_influence", "greedy", "merge", "random", "learned_masks"] = (
        Field(
            default="greedy",
            description="How layers are selected or merged; learned_masks also selects widths.",
        )
    )
    width_method: Literal["activation", "flap", "magnitude", "random"] = Field(
        default="activation", description="How heads, neurons and channels are selected."
    )
    calibration: CalibrationConfig = Field(default=CalibrationConfig(), description="Text for the scores.")
    scores: str | None = Field(
        default=None,
        min_length=1,
        description="Directory of importance scores, shareable by runs of one target; null: <run_dir>/scores.",
    )
    masks: MasksConfig = Field(default=MasksConfig(), description="Mask training with learned_masks.")
    vocabulary: VocabularyConfig | None = Field(
        default=None, description="Reduced output vocabulary; null keeps all ids."
    )
    plan: str | None = Field(
        default=None,
        min_length=1,
        description="A plan.json made for this target, instead of shape, sizes and methods.",
    )

    @property
    def source_at(self) -> tuple[str, str] | None:
        """Directory or hub id of `source` and its revision; None if the recipe has no source."""
        if self.source is None or "@" not in self.source or Path(self.source).exists():
            return None if self.source is None else (self.source, "main")
        path, _, revision = self.source.rpartition("@")
        return path, revision

    @model_validator(mode="after")
    def _one_shape_setting(self) -> "ArchitectureConfig":
        given = [name for name in GIVEN if getattr(self, name) is not None]
        if not given:
            raise ValueError(
                "must contain shape, plan, stages or a size (layers, ...). `widedraft recipes --shapes` lists shapes."
            )
        for key, others in EXCLUSIVE.items():
            for other in others:
                if key in given and other in given:
                    raise ValueError(
                        f"must not set both {key}={getattr(self, key)} and {other}={getattr(self, other)}. Remove one."
                    )
        return self

    @field_validator("stages")
    @classmethod
    def _fewer_layers_at_each_stage(cls, stages: list[int] | None) -> list[int] | None:
        if stages is not None and (stages[-1] < 1 or any(a <= b for a, b in pairwise(stages))):
            raise ValueError(f"must decrease from stage to stage and be > 0, got {stages}.")
        return stages

    @model_validator(mode="after")
    def _stages_end_in_the_shape(self) -> "ArchitectureConfig":
        if (
            self.stages is not None
            and self.shape is not None
            and NAMED_SHAPES[self.shape].shape.layers != self.stages[-1]
        ):
            layers = NAMED_SHAPES[self.shape].shape.layers
            raise ValueError(f"must have stages that end with the {layers} layers of {self.shape}, got {self.stages}.")
        return self

    @model_validator(mode="after")
    def _no_ignored_settings(self) -> "ArchitectureConfig":
        decided, by = ("masks",), f"method: {self.method}"
        if self.method == "learned_masks":
            decided = ("stages", "source", "width_method", "calibration", "scores", "plan")
        elif self.plan is not None:
            decided, by = ("method", "width_method", "masks"), f"plan: {self.plan}"
        given = [name for name in decided if getattr(self, name) != type(self).model_fields[name].default]
        if given:
            raise ValueError(f"must not set {given[0]} with {by}, which ignores it.")
        return self


WIDTHS = ("hidden", "intermediate", "heads", "kv_heads", "experts")
BLOCK = 32  # relative hidden and intermediate sizes are multiples of it, as llama.cpp's block formats require


def draft_shape(source: Shape, config: ArchitectureConfig) -> Shape:
    """Return the shape of the draft. Vocabulary, head width, biases and tied embeddings stay the target's.

    Args:
        config: A named shape, or sizes; a size left out is the target's, and kv_heads follow heads.

    Raises:
        UserError: If a size exceeds the target's, cannot be pruned from it, or no engine could serve the shape.
    """
    wanted = named_sizes(source, config) if config.shape is not None else written_sizes(source, config)
    key = f"architecture.shape={config.shape}" if config.shape is not None else "architecture"
    reject_larger(wanted, source, key)
    draft = replace(source, **wanted)
    changed = [name for name in WIDTHS if getattr(draft, name) != getattr(source, name)]
    reject_width(changed, source, key)
    reject_methods(source, config)
    unscored = next((name for name in ("hidden", "experts") if name in changed), None)
    if unscored is not None and config.width_method == "flap":
        raise UserError(
            f"{key} prunes {unscored} ({wanted[unscored]} of {getattr(source, unscored)}), for which "
            "architecture.width_method=flap has no scores. Use activation, magnitude or random."
        )
    if "experts" in changed and draft.active_experts > draft.experts:
        raise UserError(
            f"architecture.experts={config.experts} keeps {draft.experts} experts, but each token uses "
            f"{draft.active_experts} (num_experts_per_tok in config.json). Keep at least as many."
        )
    # No engine loads encoder-decoder drafts; others are as their source.
    problems = [] if source.encoder_layers or isinstance(source, OtherShape) else serving_problems(draft)
    if problems:
        raise UserError(f"{key} requests {describe(wanted)}: {' '.join(problems)}")
    if draft.heads // draft.kv_heads > source.heads // source.kv_heads:
        raise UserError(
            f"{key} has {draft.heads // draft.kv_heads} query heads for each key/value head, the target has "
            f"{source.heads // source.kv_heads}. Heads can only be removed: keep more kv_heads or fewer heads."
        )
    return draft


def masked_shape(source: Shape, config: ArchitectureConfig) -> Shape:
    """Return the shape of a draft with learned masks: smaller than the target in at least one size.

    Raises:
        UserError: As `draft_shape`, if nothing is pruned, and for heads that masks and pruning treat differently.
    """
    draft = draft_shape(source, config)
    if draft == source:
        raise UserError("architecture.method=learned_masks needs smaller sizes than the target's. Set them.")
    if FAMILIES[source.family].norms_over_heads and (draft.heads, draft.kv_heads) != (source.heads, source.kv_heads):
        raise UserError(
            f"architecture.method=learned_masks cannot prune heads of {source.family}, which normalises queries and "
            "keys over all heads: masked heads still count in the norm, pruned ones do not. Remove heads and kv_heads, "
            "or choose another method."
        )
    return draft


def named_sizes(source: Shape, config: ArchitectureConfig) -> dict[str, int]:
    assert config.shape is not None  # checked by the caller
    shape = NAMED_SHAPES[config.shape].shape
    if shape.head_dim != source.head_dim:
        raise UserError(
            f"architecture.shape={config.shape} has head_dim {shape.head_dim}, the target {source.head_dim}. Heads are "
            "kept or removed, never narrowed: set layers, hidden, intermediate and heads instead."
        )
    return {name: getattr(shape, name) for name in SIZES} | sizes_of_some(source, config)


def sizes_of_some(source: Shape, config: ArchitectureConfig) -> dict[str, int]:
    """Return the numbers of encoder blocks and of experts that the draft keeps, if its source has any."""
    sizes: dict[str, int] = {}
    for name, part in OF_SOME.items():
        wanted, of_source = getattr(config, name), getattr(source, name)
        if of_source:
            sizes[name] = written_size(name, wanted, of_source)
        elif wanted is not None:
            raise UserError(
                f"architecture.{name}={wanted}: {source.family} targets have no {part}. Remove it; "
                "architecture.layers sets the number of layers."
            )
    return sizes


def written_sizes(source: Shape, config: ArchitectureConfig) -> dict[str, int]:
    """Return the sizes of a recipe; omitted ones are the target's, and kv_heads follow heads."""
    sizes = {name: written_size(name, getattr(config, name), getattr(source, name)) for name in SIZES}
    if config.stages is not None:
        sizes["layers"] = config.stages[-1]
    can_follow = not source.no_width  # other families keep all heads, which is checked later
    if can_follow and config.heads is not None and config.kv_heads is None:
        sizes["kv_heads"] = following_kv_heads(sizes["heads"], source)
    return sizes | sizes_of_some(source, config)


def written_size(name: str, wanted: int | str | None, of_target: int) -> int:
    """Return one size: a number, a share of the target's ("0.5x"), or the target's own."""
    if wanted is None:
        return of_target
    if isinstance(wanted, int):
        return wanted
    exact = float(wanted.removesuffix("x")) * of_target
    if name == "layers":
        return max(1, round(exact))
    of_blocks = name in ("hidden", "intermediate")  # heads must divide exactly
    rounded = int(exact) // BLOCK * BLOCK if of_blocks else int(exact)
    if rounded < 1 or not (of_blocks or rounded == exact):
        raise UserError(
            f"architecture.{name}={wanted} of the target's {of_target} is {exact:g}, not an integer"
            f"{f' of at least {BLOCK}' if of_blocks else ''}. Set the number explicitly."
        )
    return rounded


def following_kv_heads(heads: int, source: Shape) -> int:
    group = source.heads // source.kv_heads
    if heads % group:
        raise UserError(
            f"architecture.heads={heads} is not a multiple of {group}, the target's query heads per key/value head. "
            f"Choose a multiple, or set architecture.kv_heads too."
        )
    return heads // group


def reject_larger(wanted: dict[str, int], source: Shape, key: str) -> None:
    larger = [
        f"{name} {size} (target {getattr(source, name)})"
        for name, size in wanted.items()
        if size > getattr(source, name)
    ]
    if larger:
        raise UserError(
            f"{key} exceeds the target in {', '.join(larger)}. A draft is pruned from its target: choose smaller sizes."
        )


def reject_width(changed: list[str], source: Shape, key: str) -> None:
    if changed and source.no_width:
        raise UserError(
            f"{key} changes {', '.join(changed)}; only layers of {source.family} targets can be pruned: "
            f"{source.no_width}. Set only architecture.layers."
        )
    if source.experts and "intermediate" in changed:
        raise UserError(
            f"{key} changes intermediate; of the experts of {source.family} targets only whole ones can be pruned. "
            "Set architecture.experts."
        )


def reject_methods(source: Shape, config: ArchitectureConfig) -> None:
    """Raise UserError for methods that need the names of a source's tensors, if its family has no entry."""
    if isinstance(source, OtherShape):
        method = config.method if config.method in ("merge", "learned_masks") else None
        key = f"method={method}" if method else "vocabulary" if config.vocabulary is not None else None
        if key is not None:
            raise UserError(
                f"architecture.{key}: not supported for model_type {source.family}, of which only whole layers can be "
                "pruned. Remove it, or set architecture.source to another model with the target's tokenizer."
            )


def describe(sizes: dict[str, int]) -> str:
    """Format sizes as "layers 5, hidden 4096"."""
    return ", ".join(f"{name} {size}" for name, size in sizes.items())
