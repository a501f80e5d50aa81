"""The tables of docs/benchmarks.md about vLLM, from the files of devices.

python -m benchmarks.gpu.vllm_table        # writes them into docs/benchmarks.md
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from architectures.pages.blocks import Table
from architectures.pages.markdown import between, markdown
from benchmarks.gpu.break_even import medians_of
from benchmarks.gpu.page import read_devices
from benchmarks.gpu.record import DEVICES
from benchmarks.gpu.stage import Row
from benchmarks.gpu.vllm_steps import FULL, NO_DRAFT, PLAIN
from eval.acceptance.speedup import StepTimes, break_even_alpha, iid_speedup, iid_tau, root_in_unit

DOC = Path(__file__).parents[2] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- vllm: begin -->", "<!-- vllm: end -->"
ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9)
OWN_LOOP = ("captured", 128)  # how our decoding loop ran the models, and the context
SHOWN_K = 3


def main() -> None:
    sections = [section(record) for record in read_devices(DEVICES) if "vllm_steps" in record["stages"]]
    DOC.write_text(between(DOC.read_text(encoding="utf-8"), BEGIN, END, "\n\n".join(sections)), encoding="utf-8")


def section(record: Mapping) -> str:
    """Costs by draft and batch size, then break-even acceptance rates, then predicted and measured speedups."""
    stage, steps = record["stages"]["vllm_steps"], record["stages"].get("steps", {}).get("rows", [])
    rows = [row for row in stage["rows"] if "step_ms" in row]
    found = [cost | {"own": own_loop(steps, cost["draft"], cost["batch"])} for cost in costs(rows)]
    ks = sorted({row["k"] for row in rows if row["k"]})
    provenance = stage["provenance"]
    title = f"### {record['device']}, vLLM {rows[0]['vllm']}, torch {record['torch']}, {provenance['created'][:10]}"
    heads = ["draft", "layers", "batch", "plain ms", *(f"k={k} ms" for k in ks), "T_draft ms", "c", "c, our loop"]
    table = []
    for row in found:
        times = [spread(row["steps"].get(k)) for k in ks]
        ratios = [number(row["draft_ms"]), number(row["cost_ratio"]), number((row["own"] or {}).get("cost_ratio"))]
        layers = FULL.drafts[row["draft"]].layers
        table.append([row["draft"], layers, row["batch"], number(row["plain_ms"]), *times, *ratios])
    parts = [title, markdown(Table(heads, table)), "Acceptance rate at which drafting breaks even, vLLM / our loop:"]
    cells = [[row["draft"], row["batch"], *(pair(row, "break_even", k) for k in ks)] for row in found]
    parts.append(markdown(Table(["draft", "batch", *(f"k={k}" for k in ks)], cells)))
    parts.append(f"Predicted speedup at k={SHOWN_K} by acceptance rate, vLLM / our loop:")
    cells = [[row["draft"], row["batch"], *(pair(row, "speedup", (SHOWN_K, a)) for a in ALPHAS)] for row in found]
    parts.append(markdown(Table(["draft", "batch", *(f"α={alpha}" for alpha in ALPHAS)], cells)))
    checked = list(checks(rows, found))
    if checked:
        parts.append("Measured with vLLM's synthetic acceptance:")
        heads = ["draft", "k", "α", "batch", "acceptance length", "speedup", "predicted"]
        parts.append(markdown(Table(heads, checked)))
    return "\n\n".join(parts)


def costs(rows: Sequence[Row]) -> Iterator[Row]:
    """What follows from step times, for each draft and batch size.

    T_draft is the least-squares slope, through the origin, of the step time beyond that of a draft that costs nothing
    over k. The speedup at acceptance rate alpha is tau(alpha, k) T_plain / step time.
    """
    steps = {(row["draft"], row["batch"], row["k"]): row for row in rows if not row["alpha"]}
    cells = {(draft, batch) for draft, batch, _ in steps if draft in FULL.drafts}
    for draft, batch in sorted(cells, key=lambda cell: (cell[1], FULL.drafts[cell[0]].layers)):
        plain_ms = steps[PLAIN, batch, 0]["step_ms"]
        own = {k: row for (name, size, k), row in sorted(steps.items()) if (name, size) == (draft, batch)}
        extra = {
            k: row["step_ms"] - steps[NO_DRAFT, batch, k]["step_ms"]
            for k, row in own.items()
            if (NO_DRAFT, batch, k) in steps
        }
        draft_ms = sum(k * ms for k, ms in extra.items()) / sum(k**2 for k in extra) if extra else None
        yield {
            "draft": draft,
            "batch": batch,
            "plain_ms": plain_ms,
            "steps": own,
            "draft_ms": draft_ms,
            "cost_ratio": draft_ms and draft_ms / plain_ms,
            "break_even": {k: break_even(row["step_ms"] / plain_ms, k) for k, row in own.items()},
            "speedup": {(k, a): iid_tau(a, k) * plain_ms / row["step_ms"] for k, row in own.items() for a in ALPHAS},
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
        "speedup": {(k, alpha): iid_speedup(alpha, k, times, batch) for k in times.verify_s for alpha in ALPHAS},
    }


def checks(rows: Sequence[Row], found: Sequence[Row]) -> Iterator[list[object]]:
    """Speedups measured at a synthetic acceptance rate, with the prediction for them."""
    by_cell = {(row["draft"], row["batch"]): row for row in found}
    for row in rows:
        cell = by_cell.get((row["draft"], row["batch"]))
        if row["alpha"] and cell is not None:
            measured = row["tokens_per_s"] * cell["plain_ms"] / 1000 / row["batch"]
            predicted = cell["speedup"].get((row["k"], row["alpha"]))
            length = number(row["tokens_per_step"])
            yield [row["draft"], row["k"], row["alpha"], row["batch"], length, number(measured), number(predicted)]


def spread(row: Row | None) -> str:
    """A median and its range."""
    if row is None:
        return ""
    low, high = row["step_ms_range"]
    return f"{number(row['step_ms'])} [{number(low)}, {number(high)}]"


def pair(row: Row, figure: str, key: object) -> str:
    """A figure of vLLM and of our loop; "never" where no acceptance rate breaks even."""
    cells = [each[figure] for each in (row, row["own"]) if each is not None]
    return " / ".join("never" if key in cell and cell[key] is None else number(cell.get(key)) for cell in cells)


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if value < 10 else f"{value:.1f}"


if __name__ == "__main__":
    main()
