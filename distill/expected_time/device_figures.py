"""benchmarks/results/devices/*.json: what `python -m benchmarks.gpu` measured of a device, read into values. No torch.

Only the stages that times are derived from are looked at. Rows that say `skipped` or `failed` hold no measurement, and
those without the key of NAMED_BY hold another: a stage's summary, or what was aimed at.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, TypeAdapter

from architectures.errors import UserError
from architectures.files.typed_file import checked, read_typed

Row = TypeVar("Row")
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]

SCHEMA = 1
REMEDY = "Measure the device again with `python -m benchmarks.gpu`, or name another file."


@dataclass(frozen=True)
class MachineRow:
    """How fast a device is at most: its matrix products in one number type, its memory, or both."""

    dtype: str | None = None
    peak_flops: Positive | None = None
    bandwidth_gb_s: Positive | None = None


@dataclass(frozen=True)
class StepRow:
    """A decoding step of a model, and the least it can take.

    Attributes:
        shape: Its name.
        layers: Of the model; hidden and parameters as well.
        how: "eager", "compiled" or "captured".
        batch: Rows.
        context: Tokens before the step in each row.
        tokens: Fed to each row.
        median_ms: Measured.
        floor_ms: Bytes read over bandwidth; None where that is not known.
        dtype: Of the weights.
    """

    shape: str
    layers: Count
    hidden: Count
    parameters: Count
    how: str
    batch: Count
    context: Annotated[int, Field(ge=0)]
    tokens: Count
    median_ms: Positive
    dtype: str
    floor_ms: Positive | None = None


@dataclass(frozen=True)
class AnswerRow:
    """Answers written in batches of which none ends early.

    Attributes:
        model: Its name.
        how: "ours" or "transformers".
        batch: Prompts answered together.
        prompt_tokens: Of each.
        new_tokens: Of each answer.
        tokens_per_s: Written, over all of the time, the reading of the prompts included.
        dtype: Of the weights.
        step_ms: Of a step behind the prompts, all rows together; None where it was not told apart.
        floor_share: Bytes read over bandwidth, over the time of a step; None where that is not known.
    """

    model: str
    how: str
    batch: Count
    prompt_tokens: Count
    new_tokens: Count
    tokens_per_s: Positive
    dtype: str
    step_ms: Positive | None = None
    floor_share: Positive | None = None


@dataclass(frozen=True)
class DistillationRow:
    """Training steps; flops_per_s counts those of distill/monitoring/flops.py.

    Attributes:
        teacher: Its name.
        student: Its name.
        source: Of what the teacher says; "none" is the student alone.
        precision: As distill.precision: "amp_bf16" or "fp32".
        flops_per_s: Measured.
        packing: As distill.packing.
        mixed_lengths: Whether sequences differed in length, as a recipe's do, so that some slots are padding.
    """

    teacher: str | None
    student: str
    source: Literal["live", "cached", "none"]
    precision: Literal["amp_bf16", "fp32"]
    flops_per_s: Positive
    packing: bool = False
    mixed_lengths: bool = False


@dataclass(frozen=True)
class StageRecord:
    """A stage of the bench as its runner recorded it."""

    status: Literal["done", "cut", "failed", "skipped"]
    rows: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class DeviceRecord:
    """A device file as it stands on the disk."""

    schema: Literal[1]
    device: Annotated[str, Field(min_length=1)]
    slug: Annotated[str, Field(min_length=1)]
    size: Literal["full", "laptop", "tiny"]
    measured: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d")]
    stages: dict[str, StageRecord]


@dataclass(frozen=True)
class DeviceFigures:
    """What was measured of a device, in the order it was measured.

    Attributes:
        device: Its name.
        slug: The same as a file's name.
        measured: The date.
        file: Where it stands.
    """

    device: str
    slug: str
    measured: str
    file: Path
    machine: tuple[MachineRow, ...] = ()
    steps: tuple[StepRow, ...] = ()
    answers: tuple[AnswerRow, ...] = ()
    distillation: tuple[DistillationRow, ...] = ()


ROWS: Mapping[str, TypeAdapter[Any]] = {
    "machine": TypeAdapter(MachineRow),
    "steps": TypeAdapter(StepRow),
    "answers": TypeAdapter(AnswerRow),
    "distillation": TypeAdapter(DistillationRow),
}
NAMED_BY = {"steps": "shape", "answers": "model", "distillation": "source"}
RECORD = TypeAdapter(DeviceRecord)


def load_figures(file: Path) -> DeviceFigures:
    """The figures of a device file.

    Raises:
        UserError: If it is no device file, with the key that is wrong.
    """
    record = read_typed(file, RECORD, REMEDY)
    if record.size == "tiny":
        raise UserError(f"{file}: size is tiny, which tests the bench and measures nothing. {REMEDY}")
    rows = {name: tuple(measured_rows(record, name, file)) for name in ROWS}
    return DeviceFigures(record.device, record.slug, record.measured[:10], file, **rows)


def measured_rows(record: DeviceRecord, stage: str, file: Path) -> Iterator[Any]:
    """The measurements of a stage; none of one that is not there."""
    measured = record.stages.get(stage)
    for index, row in enumerate(measured.rows if measured else ()):
        if NAMED_BY.get(stage, "dtype") in row and not {"skipped", "failed"} & row.keys():
            yield checked(ROWS[stage], row, f"{file}: stages.{stage}.rows[{index}]", REMEDY)
