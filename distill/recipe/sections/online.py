"""Recipe section `distill.online`: a draft that learns from the requests it helps to answer. No torch.

Source: Liu et al. 2024, "Online Speculative Decoding" (arXiv 2310.07177), algorithm 2. There the whole vocabulary's
distributions of wrong tokens are kept; here the target's hidden states are, of which its head makes the same.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from architectures.files.section import Section
from architectures.settings.kinds import Lookahead
from distill.recipe.sections.samples import SamplesConfig
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


ALONE = {  # keys of distill that online mode leaves as they are, and why
    "train_on": ("answers", "what is learned are the answers to requests"),
    "token_selection": (None, "distill.online.positions says which tokens are learned"),
    "unknown_inputs": (0.0, "what serves reads every token id"),
    "samples": (SamplesConfig(), "the target writes the answers"),
    "packing": (False, "each request is a row of its own"),
    "parallelism": ("ddp", "each process hands its draft to what serves beside it"),
}


def refuse_mode(online: OnlineConfig | None, others: Mapping[str, Any]) -> None:
    """Raise ValueError where section distill.online and the keys beside it do not go together.

    Args:
        online: The section; None where it is left out.
        others: The other keys of section distill, those that are wrong left out.
    """
    if others.get("mode") != "online":
        if online is not None:
            raise ValueError("must be left out when distill.mode is offline. Set distill.mode to online, or delete it.")
        return
    if online is None:
        raise ValueError("must be given when distill.mode is online: its stream says which requests come.")
    for name, (wanted, why) in ALONE.items():
        if others.get(name, wanted) != wanted:
            raise ValueError(
                f"must not stand beside distill.{name}={others[name]}: in online mode {why}. Leave it out."
            )
    refuse_teacher(others.get("teacher"))
    refuse_sizes(online, others)


def refuse_teacher(teacher: Any) -> None:
    """Raise ValueError unless what the teacher knows is kept as hidden states."""
    if teacher is not None and getattr(teacher, "contents", None) != "hidden":
        raise ValueError(
            "must stand beside distill.teacher with source cache and contents hidden: what is learned of a request is "
            "what the target knew when it answered, and held-out answers are compared by the same."
        )


def refuse_sizes(online: OnlineConfig, others: Mapping[str, Any]) -> None:
    """Raise ValueError where a step has no room for the requests it learns, or a stream were to be read twice."""
    batch, duration = others.get("global_train_batch_size"), others.get("max_duration")
    if batch is not None and batch < online.update_interval:
        raise ValueError(
            f"must have update_interval of at most distill.global_train_batch_size, got {online.update_interval} and "
            f"{batch}: a step learns all requests since the one before."
        )
    if duration is not None and duration != "1ep" and not duration.endswith("ba"):
        raise ValueError(
            f"must stand beside distill.max_duration in ba, or 1ep for the whole stream, got {duration}. A stream is "
            "read once."
        )
