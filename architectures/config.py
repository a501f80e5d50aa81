"""Recipe sections `target` and `architecture`, and the base every recipe section shares. No torch."""

from difflib import get_close_matches
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, WithJsonSchema, field_validator

from architectures.shapes import NAMED_SHAPES

Dtype = Literal["float32", "bfloat16", "float16"]


def named_shape(name: str) -> str:
    """The name itself if it is one of the named shapes."""
    if name not in NAMED_SHAPES:
        near = get_close_matches(name, NAMED_SHAPES, n=1)
        hint = f"Did you mean {near[0]}?" if near else "`widedraft shapes` lists them."
        raise ValueError(f"must be a named shape, got {name!r}. {hint}")
    return name


ShapeName = Annotated[
    str, AfterValidator(named_shape), WithJsonSchema({"type": "string", "enum": sorted(NAMED_SHAPES)})
]


class Section(BaseModel):
    """A group of recipe keys: unknown ones are refused, types are strict (1 may stand for 1.0), values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)


class TargetConfig(Section):
    """The model the draft will draft for; while training it is the teacher."""

    path: str = Field(min_length=1, description="A local Hugging Face folder, a hub id, or a *.gguf file.")
    revision: str = Field(default="main", min_length=1, description="Branch, tag or commit of a hub id.")
    dtype: Dtype = Field(
        default="bfloat16", description="Number type of the target's weights while it writes answers and teaches."
    )


class ArchitectureConfig(Section):
    """The shape of the draft, and how the target's weights become it. Needs exactly one of shape and layers."""

    shape: ShapeName | None = Field(default=None, description="A named shape; `widedraft shapes` lists them.")
    layers: int | None = Field(
        default=None, ge=1, description="Layers the draft keeps; every width stays the target's."
    )
    method: Literal["first_last", "evenly_spaced"] = Field(
        default="first_last", description="Which of the target's layers are kept."
    )

    @field_validator("layers")
    @classmethod
    def _one_of_shape_and_layers(cls, layers: int | None, info: ValidationInfo) -> int | None:
        shape = info.data.get("shape")
        if layers is not None and shape is not None:
            raise ValueError(f"must be left out beside architecture.shape, got {layers} and {shape!r}. Keep one.")
        if layers is None and shape is None and "shape" in info.data:
            raise ValueError("must be given, or architecture.shape. `widedraft shapes` lists the named shapes.")
        return layers
