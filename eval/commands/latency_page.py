"""A grid of step times as tables a person reads. Pure text from the record."""

from collections.abc import Sequence
from typing import Any

from eval.commands.shapes_page import depth_sentences, shapes_table
from eval.latency.steps import TARGET
from eval.models.execution import how_of
from eval.pages.tables import table

Record = dict[str, Any]

COLUMNS = ("ms by itself", "least ms", "share reached")
PERCENTILES = ("p10", "p90", "p99")  # beside the median; the last of many repetitions only


def grid_page(record: Record) -> str:
    """Every cell with its steps, then what they mean for drafting."""
    bandwidth = record["bandwidth_gb_s"]
    threads = record["machine"]["threads"]
    head = (
        f"{threads} thread{'s' if threads > 1 else ''}; memory is read at {bandwidth['read']:.1f} GB/s and copied at "
        f"{bandwidth['copy']:.1f} GB/s; load {record['machine']['before']['load_average']} before, "
        f"{record['machine']['after']['load_average']} after"
    )
    shapes = [shapes_table(record["shapes"])] if "shapes" in record else []
    return "\n\n".join([head, *shapes, *(cell_part(cell) for cell in record["cells"])])


def cell_part(cell: Record) -> str:
    """The steps of one cell, and a line on each draft."""
    how = how_of(cell)
    title = f"## Batch {cell['batch']}, {cell['context_tokens']} tokens of context, {how} steps"
    both = zip(cell["together"]["steps"], cell["alone"]["steps"], strict=True)
    rows = [step_cells(step, alone, cell) for step, alone in both]
    columns = ("step", "ms in turn", *percentiles_of(cell["together"]["steps"][0]), *COLUMNS)
    unsettled = [] if cell["together"]["settled"] else ["Times had not settled: the machine was doing other work."]
    depth = depth_sentences(cell["depth_and_width"]) if "depth_and_width" in cell else []
    return "\n\n".join([title, table(columns, rows), *unsettled, *draft_sentences(cell), *depth])


def step_cells(step: Record, alone: Record, cell: Record) -> Sequence[str]:
    """One row of a cell's table."""
    median, least = step["p50_ms"]["value"], cell["floor"][step["model"]]
    is_bound = least is not None and not step["prefill"]
    return (
        step_name(step),
        with_interval_ms(step["p50_ms"]),
        *(f"{step[f'{name}_ms']['value']:.2f}" for name in percentiles_of(step)),
        f"{alone['p50_ms']['value']:.2f}",
        f"{least:.2f}" if is_bound else "",
        f"{least / median:.0%}" if is_bound else "",
    )


def percentiles_of(step: Record) -> list[str]:
    """Those that are told of a step beside its median."""
    return [name for name in PERCENTILES if f"{name}_ms" in step]


def step_name(step: Record) -> str:
    """What is timed, in words."""
    count = step["tokens"]
    tokens = f"{count} token{'s' if count > 1 else ''}"
    if step["prefill"]:
        return f"{step['model']}, prefill of {tokens}"
    return f"{step['model']}, {tokens}{' (verify)' if step['model'] == TARGET and count > 1 else ''}"


def with_interval_ms(estimate: Record) -> str:
    """A time with its interval."""
    if estimate["interval"] is None:
        return f"{estimate['value']:.2f}"
    low, high = estimate["interval"]
    return f"{estimate['value']:.2f} [{low:.2f}, {high:.2f}]"


def draft_sentences(cell: Record) -> list[str]:
    """What each draft costs, and that it cannot pay where its step takes as long as the target's."""
    steps = [step for step in cell["together"]["steps"] if step["tokens"] == 1 and not step["prefill"]]
    medians = {step["model"]: step["p50_ms"]["value"] for step in steps}
    sentences = []
    for name in [name for name in medians if name != TARGET]:
        cost = medians[name] / medians[TARGET]
        verdict = "" if cost < 1 else ": it takes no less than the target itself, and cannot pay here"
        sentences.append(f"A step of {name} costs {cost:.3f} of a target step{verdict}.")
    return sentences
