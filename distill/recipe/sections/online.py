"""Recipe section `distill.online`: a draft that learns from the requests it helps to answer. No torch.

Source: Liu et al. 2024, "Online Speculative Decoding" (arXiv 2310.07177), algorithm 2. There the whole vocabulary's
distributions of wrong tokens are kept; here the target's hidden states are, of which its head makes the same.
"""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from architectures.files.section import Section
from architectures.settings.kinds import Lookahead
from eval.stream import StreamConfig

Eviction = Literal["oldest", "random"]


class GuardConfig(Section):
    """When a draft that got worse gives way to the last good one."""

    every: int = Field(default=4, ge=1, description="Updates between two tests of the draft against the last good one.")
    level: float = Field(
        default=0.001, gt=0, lt=0.5, description="Chance that one test takes back a draft that is as good."
    )


class OnlineConfig(Section):
    """Requests, what is learned from each, and when."""

    answers: Literal["live", "recorded"] = Field(
        default="live",
        description="live answers each request by speculative decoding, in a process of its own. recorded takes the "
        "answers and hidden states of the run's own data, and replays what the draft of the moment would have done.",
    )
    stream: StreamConfig = Field(description="Which requests come, and in which order.")
    lookahead: Lookahead = 4
    update_interval: int = Field(default=8, ge=1, description="Requests between two updates, over all processes.")
    steps_per_update: int = Field(default=3, ge=1, description="Optimiser steps of an update.")
    positions: Literal["rejected", "all"] = Field(
        default="all",
        description="What is learned of an answer: all tokens, or those in whose place the draft had proposed another.",
    )
    buffer_size: int = Field(
        default=256,
        ge=1,
        description="Requests that each process keeps. A step learns from the newest, and fills up "
        "distill.global_train_batch_size with others that are kept.",
    )
    eviction: Eviction = Field(default="oldest", description="Which request makes way for a new one.")
    wait_for_update: bool | Literal["auto"] = Field(
        default="auto",
        description="Whether a request waits until the requests before it are learned. auto waits unless the stream "
        "follows a growing file; what does not wait is served by the newest draft there is.",
    )
    guard: GuardConfig | None = Field(
        default=GuardConfig(), description="Taking back a draft that got worse; null keeps whatever was learned."
    )
    baselines: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description="Directories of drafts that do not learn, to be compared on the stream behind the training, in "
        "<run>/online/comparison.md; init is the draft that the online one begins with.",
    )
    last_share: float = Field(
        default=0.25, gt=0, le=1, description="Share of each source's requests, the last ones, that are compared."
    )

    @property
    def waits(self) -> bool:
        """Whether a request waits for the update before it."""
        return not self.stream.follow if self.wait_for_update == "auto" else self.wait_for_update

    @field_validator("buffer_size")
    @classmethod
    def _holds_an_interval(cls, size: int, info: ValidationInfo) -> int:
        interval = info.data.get("update_interval")
        if interval is not None and size < interval:
            raise ValueError(
                f"must be at least distill.online.update_interval, got {size} and {interval}: what is learned next "
                "must be kept until then."
            )
        return size
