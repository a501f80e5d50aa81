"""Recipe section `distill.online`: a draft that learns from the requests it helps to answer. No torch.

Source: Liu et al. 2024, "Online Speculative Decoding" (arXiv 2310.07177), algorithm 2. There the whole vocabulary's
distributions of wrong tokens are kept; here the target's hidden states are, of which its head makes the same.
"""

from typing import Literal

from pydantic import Field

from architectures.files.section import Section
from architectures.settings.kinds import Lookahead
from eval.stream import StreamConfig


class OnlineConfig(Section):
    """Requests, what is learned from each, and when."""

    answers: Literal["live", "recorded"] = Field(
        default="live",
        description="live answers each request by speculative decoding, in a process of its own. recorded takes the "
        "answers and hidden states of the run's own data, and replays what the draft of the moment would have done.",
    )
    stream: StreamConfig = Field(description="Which requests come, and in which order.")
    lookahead: Lookahead = 4
    update_interval: int = Field(
        default=8, ge=1, le=256, description="Requests between two updates, over all processes."
    )
    steps_per_update: int = Field(default=3, ge=1, description="Optimiser steps of an update.")
    positions: Literal["rejected", "all"] = Field(
        default="all",
        description="What is learned of an answer: all tokens, or those in whose place the draft had proposed another.",
    )
    baselines: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description="Directories of drafts that do not learn, to be compared on the stream after the training, in "
        "<run>/online/comparison.md; init is the draft that the online one begins with.",
    )

    @property
    def waits(self) -> bool:
        """Whether a request waits for the update before it: unless it comes from a file that grows."""
        return not self.stream.follow
