"""The tables of docs/benchmarks.md about vLLM, from the files of devices.

python -m benchmarks.gpu.vllm_table        # writes them into docs/benchmarks.md
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from architectures.console import Table, markdown, replace_between
from benchmarks.gpu.record import DEVICES, Record
from benchmarks.gpu.stage import Row
from benchmarks.gpu.vllm_steps import FULL, NO_DRAFT, PLAIN
from eval.speedup import StepTimes, break_even_alpha, iid_tau, root_in_unit

DOC = Path(__file__).parents[2] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- vllm: begin -->", "<!-- vllm: end -->"
OWN_LOOP = ("captured", 128)  # how our decoding loop ran the models, and the context
SHOWN_K = 3  # of c


def main() -> None:
    records = [record for record in read_devices(DEVICES) if any(map(is_step, rows_of(record)))]
    sections = [section(record) for record in records]
    DOC.write_text(
        replace_between(DOC.read_text(encoding="utf-8"), BEGIN, END, "\n\n".join(sections)), encoding="utf-8"
    )


def rows_of(record: Mapping) -> list[Row]:
    return record["stages"].get("vllm_steps", {}).get("rows", [])


def is_step(row: Row) -> bool:
    return "step_ms" in row


def section(record: Mapping) -> str:
    """Costs by draft and batch size, then break-even acceptance rates, then measured speedups."""
    steps = record["stages"].get("steps", {}).get("rows", [])
    rows = list(filter(is_step, rows_of(record)))
    found = [cost | {"own": own_loop(steps, cost["draft"], cost["batch"])} for cost in costs(rows)]
    ks = sorted({row["k"] for row in rows if row["k"]})
    runs = ", ".join(sorted({row["run"][:10] for row in rows}))
    title = f"### {record['device']}, vLLM {rows[0]['vllm']}, torch {record['torch']}, {runs}"
    heads = ["draft", "layers", "batch", "plain ms", *(f"k={k} ms" for k in ks), *(f"T_draft k={k}" for k in ks), "c"]
    heads += ["our loop: c"]
    table = []
    for row in found:
        times = [spread(row["steps"].get(k)) for k in ks] + [number(row["draft_ms"].get(k)) for k in ks]
        ratios = [number(row["cost_ratio"]), number((row["own"] or {}).get("cost_ratio"))]
        layers = FULL.drafts[row["draft"]].layers
        table.append([row["draft"], layers, row["batch"], number(row["plain_ms"]), *times, *ratios])
    parts = [title, markdown(Table(heads, table)), "Acceptance rate at which drafting breaks even (vLLM, our loop):"]
    cells = [[row["draft"], row["batch"], *(pair(row, k) for k in ks)] for row in found]
    parts.append(markdown(Table(["draft", "batch", *(f"k={k}" for k in ks)], cells)))
    checked = list(checks(rows, found))
    if checked:
        parts.append("Measured with vLLM's synthetic acceptance:")
        heads = ["draft", "k", "α", "batch", "acceptance length", "speedup", "predicted"]
        parts.append(markdown(Table(heads, checked)))
    return "\n\n".join(parts)


def costs(rows: Sequence[Row]) -> Iterator[Row]:
    """What follows from step times, for each draft and batch size, compared within one run.

    T_draft at k is (step time - step time of draft tokens that cost nothing) / k, in ms; c is that at SHOWN_K over the
    plain step, and `ratios` are step times over it.
    """
    steps = {(row["run"], row["draft"], row["batch"], row["k"]): row for row in rows if not row["alpha"]}
    cells: dict[tuple[str, int], dict[int, Row]] = {}
    for (run, draft, batch, k), row in sorted(steps.items()):
        if draft in FULL.drafts and (run, PLAIN, batch, 0) in steps:
            cells.setdefault((draft, batch), {})[k] = row
    for (draft, batch), own in sorted(cells.items(), key=lambda cell: (cell[0][1], FULL.drafts[cell[0][0]].layers)):
        plain_ms = {k: steps[row["run"], PLAIN, batch, 0]["step_ms"] for k, row in own.items()}
        free = {k: steps.get((row["run"], NO_DRAFT, batch, k)) for k, row in own.items()}
        draft_ms = {k: (own[k]["step_ms"] - each["step_ms"]) / k for k, each in free.items() if each is not None}
        ratios = {k: row["step_ms"] / plain_ms[k] for k, row in own.items()}
        yield {
            "draft": draft,
            "batch": batch,
            "plain_ms": plain_ms.get(SHOWN_K, max(plain_ms.values())),
            "steps": own,
            "draft_ms": draft_ms,
            "cost_ratio": draft_ms[SHOWN_K] / plain_ms[SHOWN_K] if SHOWN_K in draft_ms else None,
            "break_even": {k: break_even(ratio, k) for k, ratio in ratios.items()},
            "ratios": ratios,
        }


def break_even(ratio: float, k: int) -> float | None:
    """The acceptance rate at which a step that takes `ratio` plain steps pays; None where not even 1 does."""
    return root_in_unit(lambda alpha: iid_tau(alpha, k) / ratio - 1)


def own_loop(steps: Sequence[Row], draft: str, batch: int) -> Row | None:
    """The same figures of our decoding loop, by its step times on the device; None where they were not measured."""
    how, context = OWN_LOOP
    medians = medians_of(steps)
    target, own = (medians.get((name, (how, batch, context)), {}) for name in ("llama-7b", draft))
    if not {1, 2} <= own.keys() or 1 not in target:
        return None
    times = StepTimes(target[1], own[1], own[2], {tokens - 1: ms for tokens, ms in target.items() if tokens > 1})
    return {
        "cost_ratio": times.cost_ratio,
        "break_even": {k: break_even_alpha(k, times, batch) for k in times.verify_s},
    }


def checks(rows: Sequence[Row], found: Sequence[Row]) -> Iterator[list[object]]:
    """Speedups measured at a synthetic acceptance rate, with tau(alpha, k) T_plain / step time for them.

    At batch 1 only: the time of a larger batch is that of its slowest request.
    """
    by_cell = {(row["draft"], row["batch"]): row for row in found}
    for row in rows:
        cell = by_cell.get((row["draft"], row["batch"]))
        if row["alpha"] and row["batch"] == 1 and cell is not None:
            measured = row["tokens_per_s"] * cell["plain_ms"] / 1000 / row["batch"]
            ratio = cell["ratios"].get(row["k"])
            predicted = None if ratio is None else iid_tau(row["alpha"], row["k"]) / ratio
            length = number(row["tokens_per_step"])
            yield [row["draft"], row["k"], row["alpha"], row["batch"], length, number(measured), number(predicted)]


def read_devices(folder: Path) -> list[Record]:
    """Every device's record, in the order of their file names."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def medians_of(steps: Sequence[Row]) -> dict[tuple[str, tuple[str, int, int]], dict[int, float]]:
    """Milliseconds by shape and (how, batch, context), then by tokens."""
    medians: dict[tuple[str, tuple[str, int, int]], dict[int, float]] = {}
    for row in steps:
        if "median_ms" in row:
            key = (row["shape"], (row["how"], row["batch"], row["context"]))
            medians.setdefault(key, {})[row["tokens"]] = row["median_ms"]
    return medians


def spread(row: Row | None) -> str:
    """A median, and its range where there are several repetitions."""
    if row is None:
        return ""
    low, high = row["step_ms_range"]
    return number(row["step_ms"]) + (f" [{number(low)}, {number(high)}]" if row["repeats"] > 1 else "")


def pair(row: Row, k: int) -> str:
    """The break-even of vLLM and of our loop; "never" where no acceptance rate breaks even."""
    cells = [each["break_even"] for each in (row, row["own"]) if each is not None]
    return ", ".join("never" if k in cell and cell[k] is None else number(cell.get(k)) for cell in cells)


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if value < 10 else f"{value:.1f}"


if __name__ == "__main__":
    main()
