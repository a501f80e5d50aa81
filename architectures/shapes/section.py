"""Recipe sections `target` and `architecture`. No torch."""

import re
from difflib import get_close_matches
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, WithJsonSchema, field_validator, model_validator

from architectures.files.number_types import BatchDtypeOrAuto, PrecisionOrAuto
from architectures.files.section import Section
from architectures.settings.holding import Holding
from architectures.settings.kinds import DeviceMemoryGib, HostMemoryGib, TargetBits, TargetPlacement
from architectures.shapes.shape import NAMED_SHAPES
from architectures.vocabulary import VocabularyConfig


def named_shape(name: str) -> str:
    """The name itself if it is one of the named shapes."""
    if name not in NAMED_SHAPES:
        near = get_close_matches(name, NAMED_SHAPES, n=1)
        hint = f"Did you mean {near[0]}?" if near else "`widedraft recipes --shapes` lists them."
        raise ValueError(f"must be a named shape, got {name!r}. {hint}")
    return name


ShapeName = Annotated[
    str, AfterValidator(named_shape), WithJsonSchema({"type": "string", "enum": sorted(NAMED_SHAPES)})
]


def size(value: int | str) -> int | str:
    """The value itself if it is a count, or a share of the target's as in "0.5x"."""
    if isinstance(value, str):
        share = re.fullmatch(r"(0?\.\d+|1(\.0+)?)x", value)
        if not share or float(value[:-1]) == 0:
            raise ValueError(f"must be a whole number > 0, or a share of the target's size as 0.5x, got {value!r}.")
    elif isinstance(value, bool) or value < 1:
        raise ValueError(f"must be a whole number > 0, or a share of the target's size as 0.5x, got {value}.")
    return value


SIZES = ("layers", "hidden", "intermediate", "heads", "kv_heads")
GIVEN = ("plan", "shape", "stages", *SIZES, "encoder_layers")  # of these at least one says how large the draft is
EXCLUSIVE = {"plan": ("shape", "stages", *SIZES, "encoder_layers"), "shape": SIZES, "stages": ("layers",)}
Size = Annotated[
    int | str,
    AfterValidator(size),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {
                    "type": "string",
                    "pattern": r"^(0?\.\d+|1(\.0+)?)x$",
                    "title": "a share of the target's size",
                    "examples": ["0.5x", "1x"],
                },
            ]
        }
    ),
]


class TargetConfig(Section):
    """The model the draft will draft for; while training it is the teacher."""

    path: str = Field(min_length=1, description="A local Hugging Face folder, a hub id, or a *.gguf file.")
    revision: str = Field(default="main", min_length=1, description="Branch, tag or commit of a hub id.")
    dtype: BatchDtypeOrAuto = Field(
        default="bfloat16",
        description="Number type of the target's weights while it writes answers and teaches; auto is bfloat16 on a "
        "GPU and on processors that multiply many rows faster in it, else float32.",
    )
    placement: TargetPlacement = "whole"
    device_memory_gib: DeviceMemoryGib = None
    host_memory_gib: HostMemoryGib = None
    bits: TargetBits = None

    @property
    def holding(self) -> Holding:
        """How it is held while it answers and teaches."""
        return Holding(self.placement, self.device_memory_gib, self.host_memory_gib, self.bits)

    @model_validator(mode="after")
    def _held_in_one_way(self) -> "TargetConfig":
        if (mistake := self.holding.mistake) is not None:
            raise ValueError(f"must be held in one way: {mistake}")
        return self


class CalibrationConfig(Section):
    """Text that scores of layers, heads, neurons and channels are computed on, once for every shape."""

    text: str | None = Field(
        default=None,
        min_length=1,
        description="A text file, or JSON lines with prompts; null takes the prompts of data, self-written or not.",
    )
    tokens: int = Field(default=1024, ge=16, description="Tokens of that text used; less text is an error.")
    sequence_len: int = Field(default=256, ge=16, description="Tokens per sequence the text is cut into.")

    @field_validator("sequence_len")
    @classmethod
    def _no_longer_than_the_text(cls, sequence_len: int, info: ValidationInfo) -> int:
        tokens = info.data.get("tokens", sequence_len)
        if sequence_len > tokens:
            raise ValueError(f"must be at most architecture.calibration.tokens, got {sequence_len} and {tokens}.")
        return sequence_len


BATCHES = "[1-9](?:_?[0-9]){0,14}ba"

MaskTime = Annotated[
    str,
    Field(
        pattern=rf"^(?:{BATCHES}|0?\.[0-9]{{0,9}}[1-9][0-9]{{0,9}}dur|1(?:\.0{{0,9}})?dur)$",
        title="a time in batches, or a share of the training",
        examples=["100ba", "0.25dur"],
    ),
]


class MasksConfig(Section):
    """How learned masks are trained, together with the target's weights, on the sequences of `text`."""

    max_duration: str = Field(
        default="400ba",
        pattern=f"^{BATCHES}$",
        title="a time in batches",
        examples=["3200ba"],
        description="Length of the training; after a tenth of warm-up, rates fall to a tenth along a cosine.",
    )
    target_warmup: MaskTime = Field(
        default="0.5dur",
        description="Time over which the size asked for moves from the target's to the draft's.",
    )
    global_train_batch_size: int = Field(default=32, ge=1, description="Sequences per step over all processes.")
    device_train_microbatch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default="auto",
        description="Sequences per forward pass on one device; auto finds the largest that fits a GPU's memory.",
    )
    weight_lr: float = Field(default=1e-4, gt=0, description="Peak learning rate of the weights.")
    mask_lr: float = Field(default=0.3, gt=0, description="Peak learning rate of masks and multipliers.")
    lm_weight: float = Field(default=1.0, ge=0, description="Weight of the loss of the next token of the text.")
    kl_weight: float = Field(default=1.0, ge=0, description="Weight of KL(target || masked); 0 leaves the target out.")
    precision: PrecisionOrAuto = Field(
        default="amp_bf16",
        description="Arithmetic of forward and backward; weights, masks and moments stay float32. auto as for distill.",
    )
    save_interval: MaskTime = Field(
        default="0.25dur",
        description="Time between checkpoints; the newest two are kept, and training continues from them.",
    )

    @field_validator("target_warmup")
    @classmethod
    def _ends_within_the_training(cls, warmup: str, info: ValidationInfo) -> str:
        duration = info.data.get("max_duration")
        if warmup.endswith("ba") and duration is not None and int(warmup[:-2]) > int(duration[:-2]):
            raise ValueError(
                f"must be at most architecture.masks.max_duration, got {warmup} and {duration}. "
                "The draft's size would never be asked for."
            )
        return warmup

    @field_validator("device_train_microbatch_size")
    @classmethod
    def _fits_the_batch(cls, size: int | str, info: ValidationInfo) -> int | str:
        batch = info.data.get("global_train_batch_size")
        if isinstance(size, int) and batch is not None and size > batch:
            raise ValueError(f"must be at most architecture.masks.global_train_batch_size, got {size} and {batch}.")
        return size

    @field_validator("kl_weight")
    @classmethod
    def _some_loss(cls, kl_weight: float, info: ValidationInfo) -> float:
        if kl_weight == 0 and info.data.get("lm_weight") == 0:
            raise ValueError("must be > 0 when architecture.masks.lm_weight is 0. Nothing else says what to keep.")
        return kl_weight


class ArchitectureConfig(Section):
    """The shape of the draft, and how the target's weights become it. Needs shape, plan, or at least one size."""

    shape: ShapeName | None = Field(default=None, description="A named shape; `widedraft recipes --shapes` lists them.")
    layers: Size | None = Field(
        default=None, description="Layers of the draft. This and the sizes below: a number, or a share as 0.5x."
    )
    hidden: Size | None = Field(default=None, description="Channels of the residual stream.")
    intermediate: Size | None = Field(default=None, description="Neurons of a feed-forward layer.")
    heads: Size | None = Field(default=None, description="Query heads of a layer.")
    kv_heads: Size | None = Field(
        default=None,
        description="Key/value heads of a layer; null keeps the target's number of query heads for each.",
    )
    encoder_layers: Size | None = Field(
        default=None, description="Blocks of the encoder, of an encoder-decoder target; null keeps all of them."
    )
    encoder_method: Literal["first_last", "evenly_spaced", "block_influence", "random"] = Field(
        default="evenly_spaced", description="Which blocks of the target's encoder are kept."
    )
    stages: list[int] | None = Field(
        default=None,
        min_length=2,
        description="Layers after each of several cuts, as [16, 8, 5]; each is distilled before the next.",
    )
    source: str | None = Field(
        default=None,
        min_length=1,
        description="Folder or hub id the draft is cut from, if not the target: an earlier draft, or a smaller model "
        "with the target's tokenizer. The target still teaches.",
    )
    source_revision: str = Field(
        default="main",
        min_length=1,
        description="Branch, tag or commit of architecture.source, where that is a hub id.",
    )
    method: Literal["first_last", "evenly_spaced", "block_influence", "greedy", "merge", "random", "learned_masks"] = (
        Field(
            default="greedy",
            description="Which of the target's layers are kept, or merged; learned_masks trains masks, of widths too.",
        )
    )
    width_method: Literal["activation", "flap", "magnitude", "random"] = Field(
        default="activation", description="Which heads, neurons and channels are kept."
    )
    rescale: bool = Field(
        default=False, description="Scale the channels of the residual stream where layers were taken out."
    )
    calibration: CalibrationConfig = Field(default=CalibrationConfig(), description="Text the scores are computed on.")
    scores: str | None = Field(
        default=None,
        min_length=1,
        description="Folder of the scores, which runs of one target may share; null means <run_dir>/scores.",
    )
    masks: MasksConfig = Field(default=MasksConfig(), description="Training of learned_masks.")
    vocabulary: VocabularyConfig | None = Field(
        default=None, description="Token ids the draft can say; null is all of the target's."
    )
    plan: str | None = Field(
        default=None,
        min_length=1,
        description="A plan.json made for this target, taken as it is; shape, sizes and methods are then left out.",
    )

    @model_validator(mode="after")
    def _one_way_to_say_the_shape(self) -> "ArchitectureConfig":
        given = [name for name in GIVEN if getattr(self, name) is not None]
        if not given:
            raise ValueError(
                "must hold shape, plan, stages or a size (layers, ...). `widedraft recipes --shapes` lists shapes."
            )
        for key, others in EXCLUSIVE.items():
            for other in others:
                if key in given and other in given:
                    raise ValueError(
                        f"must hold one of them, got {key}={getattr(self, key)} and {other}={getattr(self, other)}. "
                        "Keep one."
                    )
        return self

    @field_validator("stages")
    @classmethod
    def _fewer_layers_at_each_stage(cls, stages: list[int] | None) -> list[int] | None:
        if stages is not None and (stages[-1] < 1 or any(a <= b for a, b in pairwise(stages))):
            raise ValueError(f"must fall from stage to stage and stay > 0, got {stages}.")
        return stages

    @model_validator(mode="after")
    def _stages_end_in_the_shape(self) -> "ArchitectureConfig":
        if (
            self.stages is not None
            and self.shape is not None
            and NAMED_SHAPES[self.shape].shape.layers != self.stages[-1]
        ):
            layers = NAMED_SHAPES[self.shape].shape.layers
            raise ValueError(f"must have stages that end in the {layers} layers of {self.shape}, got {self.stages}.")
        return self

    @model_validator(mode="after")
    def _a_method_chooses_among_blocks(self) -> "ArchitectureConfig":
        if self.encoder_layers is None and self.encoder_method != "evenly_spaced":
            raise ValueError(
                f"must leave out encoder_method without encoder_layers, got {self.encoder_method}. The encoder stays "
                "whole."
            )
        return self

    @model_validator(mode="after")
    def _a_revision_is_of_a_source(self) -> "ArchitectureConfig":
        if self.source is None and self.source_revision != "main":
            raise ValueError(
                f"must leave out source_revision without source, got {self.source_revision}. "
                "The target's own is target.revision."
            )
        return self

    @model_validator(mode="after")
    def _merged_layers_are_not_rescaled(self) -> "ArchitectureConfig":
        if self.rescale and self.method == "merge":
            raise ValueError("must have rescale: false with method: merge. Merged layers do not leave a cut behind.")
        return self

    @model_validator(mode="after")
    def _masks_and_plans_decide_alone(self) -> "ArchitectureConfig":
        decided, by = ("masks",), f"method: {self.method}"
        if self.method == "learned_masks":
            decided = ("stages", "source", "width_method", "rescale", "calibration", "scores", "plan")
        elif self.plan is not None:
            decided, by = ("method", "width_method", "rescale", "masks"), f"plan: {self.plan}"
        given = [name for name in decided if getattr(self, name) != type(self).model_fields[name].default]
        if given:
            raise ValueError(f"must leave out {given[0]} with {by}, which does not look at it.")
        return self
