"""The tables of docs/gpu.md, from the files of devices; where a stage has none, "not yet run".

python -m benchmarks.gpu.page            # writes them into docs/gpu.md
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from architectures.pages.blocks import Table
from architectures.pages.markdown import between, markdown
from benchmarks.gpu.record import DEVICES, is_measured
from benchmarks.gpu.stage import Row
from benchmarks.gpu.stages import STAGES

DOC = Path(__file__).parents[2] / "docs" / "gpu.md"
BEGIN, END = "<!-- devices: begin -->", "<!-- devices: end -->"
AWAITED = ("NVIDIA H100 80GB HBM3", "NVIDIA H200")
NOT_RUN = "not yet run"
CONTEXT = 1024  # of the step times on the page; the files have the others
AIM = "aim"
ON_ANOTHER_PAGE = ("vllm", "vllm_steps")  # benchmarks.gpu.vllm_table
# Of stages whose rows have more keys than a page is wide; the files have the others.
SHOWN = {
    "distillation": (
        "teacher student source seq_len microbatch batch optimizer packing mixed_lengths precision step_s tokens_per_s "
        "mfu peak_gib estimated_gib"
    ),
    "vllm_pair": (
        "way batch k tokens_per_s speedup interval acceptance_length accepted_per_position replayed_per_position"
    ),
    "answers": "model batch how prompt_tokens new_tokens tokens_per_s answers_per_s step_ms floor_share dtype",
    "profile": "what how batch ms gpu_busy_share draft_ms verify_ms accept_ms teacher_ms top_operation file",
}

Record = dict[str, Any]


def main() -> None:
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
    return between(text, BEGIN, END, devices_text(records))


def devices_text(records: Sequence[Record]) -> str:
    """What was run where, then a section for each device."""
    by_name = dict.fromkeys(AWAITED) | {record["device"]: record for record in records}
    heads = ["stage", *by_name]
    rows = [[name, *(outcome(record, name) for record in by_name.values())] for name in STAGES]
    sections = [section(record) for record in records]
    return "\n\n".join([markdown(Table(heads, rows)), *sections])


def outcome(record: Record | None, name: str) -> str:
    """How a stage went on a device, in a cell."""
    stage = None if record is None else record["stages"].get(name)
    if stage is None:
        return NOT_RUN
    rows = sum(map(is_measured, stage["rows"])) if stage["rows"] else 0
    told = f"{stage['status']}, {rows} rows in {stage['seconds']:.0f} s"
    return f"{told}: {stage['reason']}" if stage["reason"] else told


def section(record: Record) -> str:
    """Everything about one device."""
    told = f"Size {record['size']}, {record['measured']}, torch {record['torch']}, commit {record['git_commit'][:7]}"
    file = f"[{record['slug']}.json](../benchmarks/results/devices/{record['slug']}.json)"
    parts = [f"### {record['device']}\n\n{told}; all rows in {file}."]
    for name in STAGES:
        rows = record["stages"].get(name, {}).get("rows", [])
        if rows and name not in ON_ANOTHER_PAGE:
            parts += [f"**{name}**: {STAGES[name].what}", *tables_of(name, rows)]
    return "\n\n".join(parts)


def tables_of(name: str, rows: Sequence[Row]) -> Iterator[str]:
    """What the page shows of a stage: measured rows, aims, and what was left out."""
    measured = [row for row in rows if not {"skipped", "failed", AIM} & row.keys()]
    if name == "steps":
        yield from steps_tables(measured)
    elif name == "break_even":
        yield break_even_table(measured)
    else:
        wanted = SHOWN.get(name, "").split()
        others = [row for row in measured if wanted and not set(wanted) & row.keys()]
        yield from (rows_table([row]) for row in others)
        if len(measured) > len(others):
            yield rows_table([row for row in measured if row not in others], wanted)
    aims = [f"- aim: {row[AIM]}; reached: {shown(row['reached'])}" for row in rows if AIM in row]
    notes = [*aims, *left_out(rows)]
    if notes:
        yield "\n".join(notes)


def left_out(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each reason, with the first measurement it kept from being made."""
    by_reason: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        for kind in ("skipped", "failed"):
            if kind in row:
                by_reason.setdefault((kind, row[kind]), []).append(row)
    for (kind, reason), group in by_reason.items():
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        yield f"- {kind}: {named(group[0])}{more}: {reason}"


def rows_table(rows: Sequence[Row], wanted: Sequence[str] = ()) -> str:
    """Rows with the keys that any of them has, or those of them that are wanted; nested ones are left to the file."""
    every = wanted or dict.fromkeys(key for row in rows for key in row)
    keys = [key for key in every if any(flat(row.get(key)) for row in rows)]
    return markdown(
        Table([key.replace("_", " ") for key in keys], [[shown(row.get(key)) for key in keys] for row in rows])
    )


def flat(value: object) -> bool:
    """Whether a value goes into a cell."""
    return value is not None and not isinstance(value, Mapping)


def named(row: Row) -> str:
    """A row that was not measured, by what it would have been."""
    return ", ".join(f"{key} {shown(value)}" for key, value in row.items() if key not in ("skipped", "failed"))


def shown(value: object) -> str:
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
    if not steps:
        return
    context = nearest_context(steps)
    here, down = [row for row in steps if row["context"] == context], ("shape", "how")
    yield f"Milliseconds of one token at context {context:,} (share of its bandwidth floor that is reached), by batch:"
    yield pivot([row for row in here if row["tokens"] == 1], "batch", down, step_cell)
    yield f"The same at batch 1 by tokens fed at once, context {context:,}:"
    yield pivot([row for row in here if row["batch"] == 1], "tokens", down, step_cell)
    others = [row for row in rows if "median_ms" not in row]
    if others:
        yield rows_table(others)


def break_even_table(rows: Sequence[Row]) -> str:
    """Alpha by lookahead, at one context."""
    context = nearest_context(rows)
    here = [row for row in rows if row["context"] == context]
    told = f"At context {context:,}; empty where not even a draft that is always right pays:"
    return f"{told}\n\n{pivot(here, 'lookahead', ('shape', 'how', 'batch'), lambda row: shown(row['alpha']))}"


def nearest_context(rows: Sequence[Row]) -> int:
    """Of those that were measured, the one next to CONTEXT."""
    return min({row["context"] for row in rows}, key=lambda each: abs(each - CONTEXT))


def pivot(rows: Sequence[Row], across: str, down: Sequence[str], cell: Callable[[Row], str]) -> str:
    """Some keys down, one across."""
    columns = sorted({row[across] for row in rows})
    lines: dict[tuple[Any, ...], dict[Any, str]] = {}
    for row in rows:
        lines.setdefault(tuple(row[key] for key in down), {})[row[across]] = cell(row)
    body = [[*key, *(cells.get(column, "") for column in columns)] for key, cells in lines.items()]
    return markdown(Table([*down, *(f"{across} {column}" for column in columns)], body))


def step_cell(row: Row) -> str:
    """A time beside its floor."""
    share = f" ({row['floor_ms'] / row['median_ms']:.0%})" if row.get("floor_ms") else ""
    return f"{row['median_ms']:.2f}{share}"


if __name__ == "__main__":
    main()
