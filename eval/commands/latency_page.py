"""A grid of step times as tables a person reads. Pure, from the record."""

from collections.abc import Sequence

from architectures.pages.blocks import Block, Caution, Section, Sentence, Table
from eval.commands.depth_and_width_page import depth_sentences, shapes_table
from eval.pages.doubts import chosen_words, doubt_words
from eval.records.grid import TARGET, Cell, GridFigures, GridStep
from eval.scorecard_tables import interval

COLUMNS = ("ms by itself", "least ms", "share reached")


def grid_page(record: GridFigures) -> list[Block]:
    """Every cell with its steps, then what they mean for drafting."""
    bandwidth = record.bandwidth_gb_s
    threads = chosen_words(record.evidence) or record.machine.threads_words
    head = (
        f"{threads}; memory is read at {bandwidth.read:.1f} GB/s and copied at "
        f"{bandwidth.copy:.1f} GB/s; load {record.machine.before.load_average} before, "
        f"{record.machine.after.load_average} after"
    )
    shapes = [] if record.shapes is None else [shapes_table(record.shapes)]
    return [*map(Caution, doubt_words(record.evidence)), Sentence(head), *shapes, *map(cell_section, record.cells)]


def cell_section(cell: Cell) -> Section:
    """The steps of one cell, and a line on each draft."""
    title = f"Batch {cell.batch}, {cell.context_tokens} tokens of context, {cell.how} steps"
    both = zip(cell.together.steps, cell.alone.steps, strict=True)
    rows = [step_cells(step, alone, cell) for step, alone in both]
    columns = ("step", "ms in turn", *percentiles_ms(cell.together.steps[0]), *COLUMNS)
    unsettled = [] if cell.together.settled else ["Times had not settled: the machine was doing other work."]
    depth = [] if cell.depth_and_width is None else depth_sentences(cell.depth_and_width)
    return Section(title, [Table(columns, rows), *map(Sentence, [*unsettled, *draft_sentences(cell), *depth])])


def step_cells(step: GridStep, alone: GridStep, cell: Cell) -> Sequence[str]:
    """One row of a cell's table."""
    median, least = step.median_ms, cell.floor[step.model]
    if step.prefill:
        least = None
    return (
        step_name(step),
        interval(step.p50_ms),
        *(f"{value:.2f}" for value in percentiles_ms(step).values()),
        f"{alone.median_ms:.2f}",
        "" if least is None else f"{least:.2f}",
        "" if least is None else f"{least / median:.0%}",
    )


def percentiles_ms(step: GridStep) -> dict[str, float]:
    """Those that are told of a step beside its median; the last of many repetitions only."""
    percentiles = {"p10": step.p10_ms, "p90": step.p90_ms, "p99": step.p99_ms}
    return {name: percentile.value for name, percentile in percentiles.items() if percentile is not None}


def step_name(step: GridStep) -> str:
    """What is timed, in words."""
    count = step.tokens
    tokens = f"{count} token{'s' if count > 1 else ''}"
    if step.prefill:
        return f"{step.model}, prefill of {tokens}"
    return f"{step.model}, {tokens}{' (verify)' if step.model == TARGET and count > 1 else ''}"


def draft_sentences(cell: Cell) -> list[str]:
    """What each draft costs, and that it cannot pay where its step takes as long as the target's."""
    steps = [step for step in cell.together.steps if step.tokens == 1 and not step.prefill]
    medians = {step.model: step.median_ms for step in steps}
    sentences = []
    for name in [name for name in medians if name != TARGET]:
        cost = medians[name] / medians[TARGET]
        verdict = "" if cost < 1 else ": it takes no less than the target itself, and cannot pay here"
        sentences.append(f"A step of {name} costs {cost:.3f} of a target step{verdict}.")
    return sentences
