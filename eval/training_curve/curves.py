"""What is known of the saved checkpoints of a training, and the file it is kept in."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, FiniteFloat, TypeAdapter

from architectures.files.atomic import write_json
from architectures.files.typed_file import read_typed
from eval.acceptance.estimates import Estimate
from eval.acceptance.intervals import holds

Schema = Literal["widedraft.checkpoints/1"]
[SCHEMA] = get_args(Schema)
JSON_NAME, PAGE_NAME = "checkpoints.json", "checkpoints.md"


@dataclass(frozen=True)
class Value:
    """A figure with its interval over prompts; None where one prompt gives none."""

    value: FiniteFloat
    interval: tuple[FiniteFloat, FiniteFloat] | None


def in_its_interval(found: Value) -> Value:
    """The value itself if its interval holds it."""
    if not holds(found.interval, found.value):
        raise ValueError("must lie in its interval")
    return found


Figure = Annotated[Value, AfterValidator(in_its_interval)]
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
    alpha: Figure
    tau: Figure
    predicted: Annotated[FiniteFloat, Field(gt=0)]
    behind: Figure | None


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


def value_of(estimate: Estimate) -> Value:
    """An estimate as the file has it."""
    interval = estimate.interval
    return Value(estimate.value, None if interval is None else (interval[0], interval[1]))


def write_curves(curves: Curves, path: Path) -> None:
    """Write the file, whole or not at all."""
    write_json(asdict(curves), path)


def read_curves(path: Path) -> Curves:
    """What a file holds.

    Raises:
        UserError: If it is no such file; the message names it and the field.
    """
    return read_typed(path, FILE, "Delete the file, or run `widedraft eval RECIPE --checkpoints` again.")
