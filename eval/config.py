"""Recipe section `eval`. No torch."""

from typing import Any, ClassVar

from pydantic import Field, field_validator

from architectures.files.number_types import DtypeOrAuto
from architectures.files.section import Renamed, Section
from architectures.settings.kinds import (
    BatchSize,
    BatchSizes,
    Confidence,
    Contexts,
    Lookaheads,
    MaxScoredTokens,
    NumPrompts,
    NumThreads,
    Repeats,
    Temperatures,
)
from eval.prompts.source import PromptSource

OLDER_NAMES = {"num_prompts": "max_prompts", "temperatures": "temperature", "latency_batch_sizes": "latency_batches"}


class EvalConfig(Section):
    """How drafts are scored against their target."""

    tasks: tuple[PromptSource, ...] = Field(
        default=(), strict=False, description="Prompts to score on; empty: the held-out prompts of `data`."
    )
    num_prompts: NumPrompts = Field(default=64, description="Prompts scored at most.")
    max_new_tokens: MaxScoredTokens = Field(default=128, description="Tokens of the target's answer at most.")
    max_prompt_len: int = Field(default=1024, ge=1, description="Tokens; longer prompts are left out and counted.")
    lookaheads: Lookaheads = Field(
        default=(1, 2, 3, 4, 5, 6, 7, 8), description="Numbers of draft tokens per round to report, each once."
    )
    temperatures: Temperatures = Field(
        default=(0.0, 1.0), description="Sampling temperatures to report, each once; 0 is greedy."
    )
    dtype: DtypeOrAuto = Field(
        default="float32",
        description="Number type of target and draft while scoring; auto is bfloat16 on a GPU and on processors that "
        "compute in it, else float32.",
    )
    batch_size: BatchSize = Field(default=32, description="Rows decoded together while the target writes its answers.")
    confidence: Confidence = 0.95
    num_resamples: int = Field(default=2000, ge=1, le=100_000, description="Bootstrap resamples of the prompts.")
    num_threads: NumThreads = None
    latency_repeats: Repeats = Field(default=40, description="Timed repetitions of every step at batch 1.")
    latency_batch_sizes: BatchSizes = Field(
        default=(1, 4, 16),
        description="Rows decoded together at which steps are timed as well, a quarter as often; empty leaves it out.",
    )
    latency_contexts: Contexts = Field(
        default=(), description="Tokens before those steps; empty: as in the scored texts."
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
    renamed: ClassVar = {
        "lookahead": Renamed("lookaheads", "It lists every number: [1, 2, 3, 4] where [1, 4] was first and last."),
        **{older: Renamed(name) for name, older in OLDER_NAMES.items()},
    }

    @field_validator("lookaheads")
    @classmethod
    def _ascending(cls, lookaheads: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(lookaheads))

    def recorded(self, **which: Any) -> dict[str, Any]:
        """The settings as files and fingerprints name them since there were any: `lookahead` is [first, last].

        Args:
            which: Of them, as `model_dump` takes it.
        """
        values = self.model_dump(mode="json", **which)
        for name, older in OLDER_NAMES.items():
            values |= {older: values.pop(name)} if name in values else {}
        first, last = self.lookaheads[0], self.lookaheads[-1]
        if values.get("lookaheads") == list(range(first, last + 1)):  # lists with gaps are younger than the name
            del values["lookaheads"]
            values["lookahead"] = [first, last]
        return values


def from_recorded(values: dict[str, Any]) -> dict[str, Any]:
    """The settings of a file that an earlier widedraft wrote, by today's names."""
    settings = {**values, **{name: values[older] for name, older in OLDER_NAMES.items() if older in values}}
    if "lookahead" in values:
        first, last = values["lookahead"]
        settings["lookaheads"] = list(range(first, last + 1))
    return {name: value for name, value in settings.items() if name not in EvalConfig.renamed}
