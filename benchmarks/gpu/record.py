"""The file of a device: every stage's rows, with when and by what they were measured. Written as each stage ends."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from architectures.errors import UserError
from architectures.files import write_json
from architectures.manifest import provenance
from benchmarks.gpu.stage import Row, Size
from distill.estimate import processor_device_name, slug_of

SCHEMA = 1
DEVICES = Path(__file__).parents[1] / "results" / "devices"

# What says which measurement a row is. Other stages are made whole each time: their rows belong together.
CELLS = {
    "steps": "shape how batch context tokens equal_shapes deep wide aim",
    "vllm_steps": "case batch run",
}

Record = dict[str, Any]


def device_name(device: torch.device) -> str:
    """The GPU's name, or the processor's with the number of cores."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return processor_device_name()


def begun(device: torch.device, size: Size, out: Path) -> tuple[Record, Path]:
    """The record to go on with, and its file: that of an earlier call at this size, else a new one.

    An earlier call's is looked for in `out`, then among the results that are kept with the project.

    Raises:
        UserError: If the file that is there was measured at another size.
    """
    name = device_name(device)
    file = out / f"{slug_of(name)}.json"
    for earlier in (file, DEVICES / file.name):
        if earlier.is_file():
            record = json.loads(earlier.read_text(encoding="utf-8"))
            if record["size"] == size:
                return record, file
            if earlier == file:
                raise UserError(
                    f"{file}: was measured at size {record['size']}, and {size} is asked for. Give another --out."
                )
    return {"schema": SCHEMA, "device": name, "slug": file.stem, "size": size, "stages": {}}, file


def stage_record(status: str, reason: str | None, rows: list[Row], *, seconds: float, limit_s: float) -> Record:
    """How one stage went."""
    told = provenance()
    del told["argv"]  # it holds folders of the machine
    return {
        "status": status,
        "reason": reason,
        "seconds": round(seconds, 1),
        "limit_s": round(limit_s, 1),
        "rows": rows,
        "provenance": told,
    }


def with_earlier(name: str, rows: list[Row], earlier: Record | None) -> list[Row]:
    """The rows of a stage, and those that an earlier call measured and this one did not; each of them says when."""
    if earlier is None or name not in CELLS:
        return rows
    measured = {cell_of(name, row) for row in rows if is_measured(row)}
    created = earlier["provenance"]["created"]
    kept = [
        {"measured": created} | row
        for row in earlier["rows"]
        if is_measured(row) and cell_of(name, row) not in measured
    ]
    known = measured | {cell_of(name, row) for row in kept}
    left_out = [row for row in rows if not is_measured(row) and cell_of(name, row) not in known]
    return [*(row for row in rows if is_measured(row)), *kept, *left_out]


def is_measured(row: Row) -> bool:
    """Whether a row is a result: not one that was left out, failed, or was found to be wrong."""
    return not {"skipped", "failed", "dropped"} & row.keys()


def cell_of(name: str, row: Row) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in CELLS[name].split())


def keep(record: Record, name: str, stage: Record, file: Path) -> None:
    """Write the record with one stage more, or made again."""
    stage["rows"] = with_earlier(name, stage["rows"], record["stages"].get(name))
    record["stages"][name] = stage
    record["measured"] = datetime.now(UTC).date().isoformat()
    for key in ("git_commit", "python"):
        record[key] = stage["provenance"][key]
    record["torch"] = torch.__version__
    write_json(record, file)


def summary(record: Record, names: list[str]) -> str:
    """A line for each stage."""
    lines = []
    for name in names:
        stage = record["stages"].get(name)
        if stage is None:
            lines.append(f"{name:13} not run")
            continue
        rows = stage["rows"]
        left_out = sum("skipped" in row for row in rows)
        failed = sum("failed" in row for row in rows)
        counts = f"{len(rows) - left_out - failed} rows, {left_out} left out, {failed} failed"
        reason = f"  {stage['reason']}" if stage["reason"] else ""
        lines.append(
            f"{name:13} {stage['status']:8} {stage['seconds']:6.1f} of {stage['limit_s']:.0f} s  {counts}{reason}"
        )
    return "\n".join(lines)
