"""How gradients move the student, and how fast. No torch, no Composer."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from architectures.files.section import Section
from distill.recipe.sections.times import Warmup

Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Section):
    """How gradients move the student."""

    name: Literal["decoupled_adamw", "adamw"] = Field(
        default="adamw", description="PyTorch's AdamW, fused into one pass, or Composer's DecoupledAdamW."
    )
    lr: float = Field(default=1e-3, gt=0, description="Peak learning rate.")
    betas: tuple[Beta, Beta] = Field(default=(0.9, 0.95), strict=False, description="Decay of the two moments.")
    eps: float = Field(default=1e-8, gt=0, description="Added to the second moment's root.")
    weight_decay: float = Field(
        default=0.0,
        ge=0,
        description="Fraction of the weights removed each step; adamw multiplies it by the learning rate.",
    )


class SchedulerConfig(Section):
    """How the learning rate moves over training."""

    name: Literal["cosine_with_warmup", "linear_decay_with_warmup", "constant_with_warmup"] = Field(
        default="cosine_with_warmup", description="Course after the warm-up."
    )
    t_warmup: Warmup = Field(default="0.05dur", description="Time over which the learning rate rises from zero.")
    alpha_f: float = Field(
        default=0.1,
        ge=0,
        description="Learning rate at the end as a multiple of lr; constant_with_warmup has none.",
    )

    @field_validator("alpha_f")
    @classmethod
    def _constant_has_no_end(cls, alpha_f: float, info: ValidationInfo) -> float:
        if info.data.get("name") == "constant_with_warmup" and alpha_f != cls.model_fields["alpha_f"].default:
            raise ValueError(
                f"must be left out when distill.scheduler.name is constant_with_warmup, got {alpha_f}. "
                "A constant learning rate ends at lr."
            )
        return alpha_f


class GradientClipping(Section):
    """Bounds the gradient of every step."""

    clipping_type: Literal["norm"] = Field(default="norm", description="What is bounded: the norm of all gradients.")
    clipping_threshold: float = Field(default=1.0, gt=0, description="Largest norm.")
