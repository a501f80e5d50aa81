"""The tables of docs/gpu.md, from the files of devices; where a stage has none, "not yet run".

python -m bench.gpu.page            # writes them into docs/gpu.md
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.gpu.record import DEVICES
from bench.gpu.stage import Row
from bench.gpu.stages import STAGES
from eval.scorecard.tables import table

DOC = Path(__file__).parents[2] / "docs" / "gpu.md"
BEGIN, END = "<!-- devices: begin -->", "<!-- devices: end -->"
AWAITED = ("NVIDIA H100 80GB HBM3", "NVIDIA H200")
NOT_RUN = "not yet run"
CONTEXT = 1024  # of the step times on the page; the files have the others
AIM = "aim"

Record = dict[str, Any]


def main() -> None:
    """Write the page anew."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=Path, default=DEVICES)
    parser.add_argument("--doc", type=Path, default=DOC)
    options = parser.parse_args()
    text = options.doc.read_text(encoding="utf-8")
    options.doc.write_text(with_devices(text, read_devices(options.devices)), encoding="utf-8")


def read_devices(folder: Path) -> list[Record]:
    """Every device's record, those with a GPU first as their files sort."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def with_devices(text: str, records: Sequence[Record]) -> str:
    """A page with its tables made anew."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{devices_text(records)}\n\n{END}{after}"


def devices_text(records: Sequence[Record]) -> str:
    """What was run where, then a section for each device."""
    by_name = dict.fromkeys(AWAITED) | {record["device"]: record for record in records}
    heads = ["stage", *by_name]
    rows = [[name, *(outcome(record, name) for record in by_name.values())] for name in STAGES]
    sections = [section(record) for record in records]
    return "\n\n".join([table(heads, rows), *sections])


def outcome(record: Record | None, name: str) -> str:
    """How a stage went on a device, in a cell."""
    stage = None if record is None else record["stages"].get(name)
    if stage is None:
        return NOT_RUN
    told = f"{stage['status']}, {len(stage['rows'])} rows in {stage['seconds']:.0f} s"
    return f"{told}: {stage['reason']}" if stage["reason"] else told


def section(record: Record) -> str:
    """Everything about one device."""
    told = f"Size {record['size']}, {record['measured']}, torch {record['torch']}, commit {record['git_commit'][:7]}"
    file = f"[{record['slug']}.json](../bench/results/devices/{record['slug']}.json)"
    parts = [f"### {record['device']}\n\n{told}; all rows in {file}."]
    for name in STAGES:
        rows = record["stages"].get(name, {}).get("rows", [])
        if rows:
            parts += [f"**{name}**: {STAGES[name].what}", *tables_of(name, rows)]
    return "\n\n".join(parts)


def tables_of(name: str, rows: Sequence[Row]) -> Iterator[str]:
    """What the page shows of a stage: measured rows, aims, and what was left out."""
    measured = [row for row in rows if not {"skipped", "failed", AIM} & row.keys()]
    yield from steps_tables(measured) if name == "steps" else [rows_table(measured)]
    aims = [f"- aim: {row[AIM]}; reached: {shown(row['reached'])}" for row in rows if AIM in row]
    left_out = [f"- {kind}: {named(row)}: {row[kind]}" for kind in ("skipped", "failed") for row in rows if kind in row]
    if aims or left_out:
        yield "\n".join([*aims, *left_out])


def rows_table(rows: Sequence[Row]) -> str:
    """Rows with the keys that any of them has, nested ones left to the file."""
    keys = [key for key in dict.fromkeys(key for row in rows for key in row) if any(flat(row.get(key)) for row in rows)]
    if not keys:
        return ""
    return table([key.replace("_", " ") for key in keys], [[shown(row.get(key)) for key in keys] for row in rows])


def flat(value: object) -> bool:
    """Whether a value goes into a cell."""
    return value is not None and not isinstance(value, Mapping)


def named(row: Row) -> str:
    """A row that was not measured, by what it would have been."""
    return ", ".join(f"{key} {shown(value)}" for key, value in row.items() if key not in ("skipped", "failed"))


def shown(value: object) -> str:
    """A value in a cell."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list):
        return f"[{', '.join(shown(each) for each in value)}]"
    return str(value)


def steps_tables(rows: Sequence[Row]) -> Iterator[str]:
    """One token by batch at one context, then the tokens verified at once at batch 1."""
    steps = [row for row in rows if "median_ms" in row]
    contexts = {row["context"] for row in steps}
    if not steps:
        return
    context = min(contexts, key=lambda each: abs(each - CONTEXT))
    here = [row for row in steps if row["context"] == context]
    yield f"Milliseconds of one token at context {context:,} (share of its bandwidth floor that is reached), by batch:"
    yield pivot([row for row in here if row["tokens"] == 1], "batch")
    yield f"The same at batch 1 by tokens fed at once, context {context:,}:"
    yield pivot([row for row in here if row["batch"] == 1], "tokens")
    others = [row for row in rows if "median_ms" not in row]
    if others:
        yield rows_table(others)


def pivot(rows: Sequence[Row], across: str) -> str:
    """Shapes and ways down, one key across."""
    columns = sorted({row[across] for row in rows})
    lines = {(row["shape"], row["how"]): {} for row in rows}
    for row in rows:
        lines[row["shape"], row["how"]][row[across]] = step_cell(row)
    body = [[*key, *(cells.get(column, "") for column in columns)] for key, cells in lines.items()]
    return table(["shape", "steps", *(f"{across} {column}" for column in columns)], body)


def step_cell(row: Row) -> str:
    """A time beside its floor."""
    share = f" ({row['floor_ms'] / row['median_ms']:.0%})" if row.get("floor_ms") else ""
    return f"{row['median_ms']:.2f}{share}"


if __name__ == "__main__":
    main()
