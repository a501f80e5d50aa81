"""What is known of the saved checkpoints of a training, and the file it is kept in."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, FiniteFloat, TypeAdapter

from architectures.files.atomic import write_json
from architectures.files.typed_file import read_typed
from architectures.settings.recipe_command import command_of
from eval.acceptance.estimates import Estimate

Schema = Literal["widedraft.checkpoints/1"]
[SCHEMA] = get_args(Schema)
JSON_NAME, PAGE_NAME = "checkpoints.json", "checkpoints.md"


Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Point:
    """One checkpoint.

    Attributes:
        checkpoint: Its name.
        batches: Trained before it was saved.
        tokens: The same in tokens.
        alpha: Mean chance that a proposal is kept.
        tau: Tokens a round, at the lookahead of the curve.
        predicted: Speed-up of decoding at that lookahead.
        behind: The best checkpoint's tau less this one's, on the same prompts; None of the best itself.
    """

    checkpoint: str
    batches: Count
    tokens: Count
    alpha: Estimate
    tau: Estimate
    predicted: Annotated[FiniteFloat, Field(gt=0)]
    behind: Estimate | None


@dataclass(frozen=True)
class Curve:
    """All checkpoints at one temperature, in the order they were saved.

    Attributes:
        temperature: Of target and draft.
        lookahead: At which the best promises most.
        best: Name of the checkpoint that promises the highest speed; of two equal ones the earlier.
        points: All of them.
    """

    temperature: Annotated[FiniteFloat, Field(ge=0)]
    lookahead: Annotated[int, Field(ge=1)]
    best: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Curves:
    """The file: one curve for each temperature. Fingerprints tell whose scorecard it stands beside."""

    schema: Schema
    target: str
    draft: str
    curves: tuple[Curve, ...]


FILE = TypeAdapter(Curves)


def write_curves(curves: Curves, path: Path) -> None:
    """Write the file, whole or not at all."""
    write_json(asdict(curves), path)


def read_curves(path: Path) -> Curves:
    """What a file holds.

    Raises:
        UserError: If it is no such file; the message names it and the field.
    """
    return read_typed(path, FILE, f"Delete the file, or run {command_of('eval', '--checkpoints')} again.")
