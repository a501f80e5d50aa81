"""Files of records: written from the types and read into them, those of the version before as well."""

from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from architectures.errors import UserError
from architectures.files.atomic import write_json
from architectures.files.reading import read_json
from architectures.files.typed_file import checked
from eval.records.grid import GridFile
from eval.records.scorecard import RECORDED_SCHEMA, SCHEMA, RecordedScorecard, Scorecard
from eval.records.speed import SpeedFile

CARD_NAME = "scorecard.json"
FORMS: dict[str, type] = {
    "scorecard": Scorecard,
    "recorded_scorecard": RecordedScorecard,
    "latency": GridFile,
    "speed": SpeedFile,
}
REMEDIES = {
    "widedraft.scorecard/1": "It is of an older version: take its folder away and run `widedraft eval` again.",
    RECORDED_SCHEMA: (
        "It is of recorded answers, without a target and so without any speed: read the scorecard.md beside it."
    ),
}
DAMAGED = "The file is damaged: take the original, or take its folder away and run `widedraft eval` again."
GRID_REMEDY = "Name a file that `widedraft latency --out` wrote."

Record = TypeVar("Record", Scorecard, RecordedScorecard, GridFile, SpeedFile)


@cache
def form_of(record: type) -> TypeAdapter[Any]:
    """Made when it is first asked: that of a scorecard takes a moment."""
    return TypeAdapter(record)


def plain(record: object) -> Any:
    """The values that a file of a record holds."""
    return form_of(type(record)).dump_python(record, mode="json")


def write_record(record: Record, path: Path) -> None:
    """Write the file, whole or not at all."""
    write_json(plain(record), path)


def scorecard_from(values: Any, path: Path) -> Scorecard:
    """The scorecard of plain values; `path` begins messages.

    Raises:
        UserError: If a field is missing or of another kind, or parts do not fit each other.
    """
    return checked(form_of(Scorecard), values, str(path), DAMAGED)


def read_scorecard(path: Path) -> Scorecard:
    """The file of a scorecard of this version or the one before.

    Raises:
        UserError: If it is no such file; the message names it and the field.
    """
    values = read_json(path, f"Name a {CARD_NAME} that `widedraft eval` wrote.")
    schema = values.get("schema") if isinstance(values, dict) else None
    if schema == "widedraft.scorecard/2":
        values = scorecard_of_2(values)
    elif schema != SCHEMA:
        remedy = REMEDIES.get(str(schema), f"Name a {CARD_NAME} that `widedraft eval` of this version wrote.")
        raise UserError(f"{path}: schema must be {SCHEMA}, got {'none' if schema is None else repr(schema)}. {remedy}")
    return scorecard_from(values, path)


def read_grid_file(path: Path) -> GridFile:
    """A grid of step times; files from before it had a schema hold the same.

    Raises:
        UserError: If it is no such file; the message names it and the field.
    """
    values = read_json(path, GRID_REMEDY)
    return checked(form_of(GridFile), values, str(path), GRID_REMEDY)


def scorecard_of_2(values: dict[str, Any]) -> dict[str, Any]:
    """A scorecard of version 2 as version 3 has it; what does not have the form of either is left for the check.

    Steps had `median_ms` and `interval_ms` and bare percentiles; what came in while it was version 2 may be missing.
    """
    changed = {**values, "schema": SCHEMA}
    changed["policies"] = values.get("policies") or []
    changed["settings"] = with_defaults(values.get("settings"), intervals="percentile bootstrap")
    changed["live"] = with_defaults(values.get("live"), ways=[], over_lookup=[])
    changed["acceptance"] = mapped(values.get("acceptance"), row_of_2)
    if isinstance(latency := values.get("latency"), dict):
        changed["latency"] = {
            **latency,
            "target": step_of_2(latency.get("target")),
            "verify": mapped(latency.get("verify"), step_of_2),
            "drafts": mapped(latency.get("drafts"), draft_steps_of_2),
        }
    return changed


def with_defaults(section: Any, **defaults: Any) -> Any:
    return {**defaults, **section} if isinstance(section, dict) else section


def mapped(rows: Any, change: Any) -> Any:
    return [change(row) if isinstance(row, dict) else row for row in rows] if isinstance(rows, list) else rows


def row_of_2(row: dict[str, Any]) -> dict[str, Any]:
    """A row of acceptance, whose coverage and sums of prompts may be missing."""
    row = {"coverage": None, "by_prompt": None, **row}
    row["by_prompt"] = with_defaults(row["by_prompt"], sayable=None)
    row["bins"] = mapped(
        row.get("bins"),
        lambda part: {**part, "bins": mapped(part.get("bins"), lambda bin_: {"coverage": None, **bin_})},
    )
    return row


def draft_steps_of_2(steps: dict[str, Any]) -> dict[str, Any]:
    return {**steps, **{name: step_of_2(steps.get(name)) for name in ("one_token", "two_tokens")}}


def step_of_2(step: Any) -> Any:
    """A step with its median as an estimate."""
    if not isinstance(step, dict) or "median_ms" not in step:
        return step
    others = {name: step[name] for name in step if name not in ("median_ms", "interval_ms", "p10_ms", "p90_ms")}
    percentiles = {name: {"value": step.get(name), "interval": None} for name in ("p10_ms", "p90_ms")}
    return {**others, **percentiles, "p50_ms": {"value": step["median_ms"], "interval": step.get("interval_ms")}}
