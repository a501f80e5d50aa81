"""The settings of a stream of requests. No torch."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from architectures.files.section import Section
from architectures.settings.kinds import MOST
from eval.tasks import PromptSource

Mix = Literal["in_order", "sharp", "smooth"]
Malformed = Literal["stop", "skip"]


class StreamConfig(Section):
    """Requests one after the other, and in which order those of several sets come."""

    sources: tuple[PromptSource, ...] = Field(strict=False, min_length=1, description="Where requests are read from.")
    label: str | None = Field(
        default=None,
        min_length=1,
        description="Field of a row that says whose curve its request is of, as dataset, language or topic; null is "
        "the name of its task, else of its file. Requests of one label are one set; without a field, those of one "
        "source.",
    )
    mix: Mix = Field(
        default="in_order",
        description="Order of the sets: as the sources are; sharp, equal shares one set after another; smooth, drawn "
        "with chances that move over the stream.",
    )
    num_requests: int | None = Field(
        default=None,
        ge=1,
        le=MOST,
        description="Requests of the stream; null is all that there are, of a sharp mix as many of each set as the "
        "smallest has.",
    )
    follow: bool = Field(default=False, description="Wait for lines that are still being written to the file.")
    idle_s: float | None = Field(
        default=None, gt=0, description="Seconds without a new line that end a followed file; null waits for ever."
    )
    malformed: Malformed = Field(
        default="stop", description="What a row that is no prompt does: end everything, or be skipped and counted."
    )

    @field_validator("mix")
    @classmethod
    def _of_several_sets(cls, mix: Mix, info: ValidationInfo) -> Mix:
        if mix != "in_order" and len(info.data.get("sources", "..")) < 2 and info.data.get("label") is None:
            raise ValueError(f"must be in_order for one source without a label, got {mix}. Name the sets to mix.")
        return mix

    @field_validator("follow")
    @classmethod
    def _one_file_in_order(cls, follow: bool, info: ValidationInfo) -> bool:  # noqa: FBT001  # pydantic's signature
        if not follow:
            return follow
        sources, mix = info.data.get("sources"), info.data.get("mix", "in_order")
        if sources is not None and (len(sources) > 1 or sources[0].path is None):
            raise ValueError("must be false unless sources names one file, got true. Only one file can be waited on.")
        if mix != "in_order":
            raise ValueError(f"must be false when mix is {mix}, got true. What is not written yet cannot be mixed.")
        return follow

    @field_validator("idle_s")
    @classmethod
    def _only_followed(cls, idle_s: float | None, info: ValidationInfo) -> float | None:
        if idle_s is not None and info.data.get("follow") is False:
            raise ValueError(f"must be left out when follow is false, got {idle_s:g}. Nothing is waited for.")
        return idle_s
