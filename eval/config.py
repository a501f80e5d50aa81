"""Recipe section `eval`. No torch."""

from typing import Annotated

from pydantic import Field, field_validator

from architectures.files.number_types import DtypeOrAuto
from architectures.files.section import Section
from eval.prompts.source import PromptSource


class EvalConfig(Section):
    """How drafts are scored against their target."""

    tasks: tuple[PromptSource, ...] = Field(
        default=(), strict=False, description="Prompts to score on; empty: the held-out prompts of `data`."
    )
    max_prompts: int = Field(default=64, ge=1, description="Prompts scored at most.")
    max_new_tokens: int = Field(default=128, ge=2, description="Tokens of the target's answer at most.")
    max_prompt_len: int = Field(default=1024, ge=1, description="Tokens; longer prompts are left out and counted.")
    lookahead: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] = Field(
        default=(1, 8), strict=False, description="First and last number of draft tokens per round to report."
    )
    temperature: tuple[Annotated[float, Field(ge=0)], ...] = Field(
        default=(0.0, 1.0), strict=False, min_length=1, description="Sampling temperatures to report; 0 is greedy."
    )
    dtype: DtypeOrAuto = Field(
        default="float32",
        description="Number type of target and draft while scoring; auto is bfloat16 on a GPU and on processors that "
        "compute in it, else float32.",
    )
    batch_size: int = Field(default=32, ge=1, description="Rows decoded together while the target writes its answers.")
    confidence: float = Field(default=0.95, gt=0, lt=1, description="Coverage of every interval, a fraction.")
    num_resamples: int = Field(default=2000, ge=1, le=100_000, description="Bootstrap resamples of the prompts.")
    num_threads: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Processor threads; null takes as many as OMP_NUM_THREADS says, or every core it may.",
    )
    latency_repeats: int = Field(default=40, ge=1, le=10**6, description="Timed repetitions of every step at batch 1.")
    latency_batches: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        default=(1, 4, 16),
        strict=False,
        description="Rows decoded together at which steps are timed as well, a quarter as often; empty leaves it out.",
    )
    latency_contexts: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        default=(), strict=False, description="Tokens before those steps; empty: as in the scored texts."
    )
    live_prompts: int = Field(
        default=16, ge=1, description="Prompts the live loop decodes: the first of the scored ones, or all if fewer."
    )
    policy_prompts: int = Field(
        default=0,
        ge=0,
        description="Prompts behind the scored ones on whose answers it is tuned when the text proposes, when the "
        "draft and when nobody; 0 leaves that out.",
    )

    @field_validator("lookahead")
    @classmethod
    def _ascending(cls, lookahead: tuple[int, int]) -> tuple[int, int]:
        first, last = lookahead
        if first > last:
            raise ValueError(f"must be [first, last] with first <= last, got {list(lookahead)}. Swap them.")
        return lookahead

    @field_validator("temperature", "latency_batches", "latency_contexts")
    @classmethod
    def _distinct(cls, values: tuple[float, ...]) -> tuple[float, ...]:
        if len(set(values)) < len(values):
            raise ValueError(f"must name each value once, got {list(values)}.")
        return values
