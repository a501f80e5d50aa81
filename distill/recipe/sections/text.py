"""Recipe section `text`: domains of plain text, and how the share of each moves over training. No torch."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from architectures.files.section import Section
from distill.recipe.sections.times import FRACTION, WHOLE

JSON_SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz")

# As `Interval` without epochs: text that begins again when it ends has none.
UpdateInterval = Annotated[
    str,
    Field(
        pattern=rf"^(?:{WHOLE}(?:ba|sp|tok)|{FRACTION}dur)$",
        title="a Composer time",
        examples=["50ba", "1_000_000tok", "0.1dur"],
    ),
]


class TextDomain(Section):
    """One kind of text. Needs exactly one of path and dataset."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=100,
        title="a name of letters, digits, '.', '_' and '-'",
        examples=["wiki", "github"],
        description="Name of the domain in logs and checkpoints.",
    )
    path: str | None = Field(
        default=None, min_length=1, description="A file: JSON lines if it ends in .jsonl or .json, else plain text."
    )
    dataset: str | None = Field(default=None, min_length=1, description="A hub id or folder that `datasets` opens.")
    config: str | None = Field(default=None, min_length=1, description="Configuration of a `datasets` name.")
    split: str = Field(default="train", min_length=1, description="Split of a `datasets` name.")
    field: str = Field(default="text", min_length=1, description="Where a row of JSON lines or a dataset has its text.")
    weight: float = Field(default=1.0, gt=0, description="Share of the sequences at first, relative to the others.")
    reference_loss_nats: float | None = Field(
        default=None,
        ge=0,
        description="Nats per token the model should reach here; null takes those of the model it is made from.",
    )


def is_plain_text(path: str) -> bool:
    """Whether a file is text as it stands, and not JSON lines."""
    return not Path(path).name.endswith(JSON_SUFFIXES)


class TextConfig(Section):
    """Text in domains, packed into sequences of one length."""

    domains: tuple[TextDomain, ...] = Field(
        strict=False,
        json_schema_extra={"minItems": 1},
        description="Where text is read from; each domain has a weight of its own.",
    )
    max_seq_len: int = Field(default=1024, ge=2, description="Tokens of every sequence.")
    num_eval_sequences: int = Field(
        default=64, ge=1, description="First sequences of each domain, held out of training for its loss."
    )
    mixture: Literal["fixed", "paper", "code"] = Field(
        default="paper",
        description="How the share of each domain follows the held-out losses: fixed leaves the weights; paper and "
        "code are dynamic batch loading as published and as released.",
    )
    update_interval: UpdateInterval = Field(
        default="50ba", description="Time between two measurements of the held-out losses, each with an update."
    )
