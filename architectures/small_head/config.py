"""Recipe section `architecture.vocabulary`. No torch."""

from typing import Annotated

from pydantic import Field, WithJsonSchema, model_validator

from architectures.files.section import Section

COUNTED = ("answers", "text")  # what ids are counted in; any other origin is the path of a list
Origin = Annotated[
    str,
    Field(min_length=1),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "enum": list(COUNTED)},
                {"type": "string", "pattern": ".", "title": "the path of a list", "examples": ["ids.json"]},
            ]
        }
    ),
]


class VocabularyConfig(Section):
    """Which token ids the draft can say: its output head has a row for each of these and no other."""

    size: int | None = Field(
        default=None,
        ge=1,
        description="How many ids, special tokens and single bytes included; of a list, null takes all of it.",
    )
    origin: Origin = Field(
        default="answers",
        alias="from",
        description="What ids are ranked by: how often the training answers say them, or section text does; or the "
        "path of a JSON list of ids, the first ones first, or of a draft whose ids are taken.",
    )

    @model_validator(mode="after")
    def _counts_need_an_end(self) -> "VocabularyConfig":
        if self.size is None and self.origin in COUNTED:
            raise ValueError(f"must hold size with from: {self.origin}: only a list says itself how long it is.")
        return self
