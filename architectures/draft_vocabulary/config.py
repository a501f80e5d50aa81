"""Recipe section `architecture.vocabulary`. No torch."""

from typing import Literal

from pydantic import Field, model_validator

from architectures.section import Section

COUNTED = ("answers", "text")  # what ids are counted in; any other origin is the path of a list


class VocabularyConfig(Section):
    """Which token ids the draft can say: its output head has a row for each of these and no other."""

    size: int | None = Field(
        default=None,
        ge=1,
        description="How many ids, special tokens and single bytes included; of a list, null takes all of it.",
    )
    origin: Literal["answers", "text"] | str = Field(
        default="answers",
        alias="from",
        min_length=1,
        description="What ids are ranked by: how often the training answers say them, or section text does; or the "
        "path of a JSON list of ids, the first ones first.",
    )

    @model_validator(mode="after")
    def _counts_need_an_end(self) -> "VocabularyConfig":
        if self.size is None and self.origin in COUNTED:
            raise ValueError(f"must hold size with from: {self.origin}: only a list says itself how long it is.")
        return self
