"""Speed at larger batches, predicted: the acceptance of a scorecard with step times as `widedraft latency` has them."""

from collections.abc import Sequence
from dataclasses import dataclass

from architectures.pages.blocks import Absent, Block, Sentence, Table
from eval.pages.tables import by_draft
from eval.predictions.promise import promise
from eval.records.grid import Cell, GridFile
from eval.report_inputs.drafts import ScoredDraft, all_temperatures, measured, scored_at
from eval.report_inputs.grid_file import Grids
from eval.report_opening.sentence import fastest

COLUMNS = ("draft", "batch", "context", "steps", "temperature", "lookahead", "predicted speed")


@dataclass(frozen=True)
class Promise:
    """What a draft promises in a cell of the grid, at the lookahead that promises most."""

    cell: Cell
    lookahead: int
    speed: float


def promises(draft: ScoredDraft, temperature: float, grid: GridFile) -> list[Promise]:
    """One for each cell; none where the grid has no times of the draft, or of a lookahead that was scored."""
    name, row = grid.name_of(draft.model.fingerprint), draft.row(temperature)
    if name is None or not set(row.lookaheads) & set(grid.lookaheads):
        return []
    return [
        Promise(cell, *promise(row.lookahead, cell.step_times(name, grid.lookaheads), batch=cell.batch))
        for cell in grid.cells
    ]


def best_batches(drafts: Sequence[ScoredDraft], grids: Grids) -> str:
    """At which batches the fastest draft is predicted to pay; empty where none was measured, or no steps are known."""
    live = measured(drafts)
    if not live:
        return ""
    best = fastest(live)
    grid = grids.get(best.card.path)
    assert best.live is not None, "it was measured"
    return "" if grid is None else batch_words(best, best.live.temperature, grid.grid)


def batch_words(draft: ScoredDraft, temperature: float, grid: GridFile) -> str:
    """Up to which batch a draft promises to pay, by eager steps at the context nearest to the scorecard's.

    The machine and the number type are named where they are not the scorecard's.
    """
    eager = [promise for promise in promises(draft, temperature, grid) if promise.cell.how == "eager"]
    if not eager:
        return ""
    record = draft.card.record
    scored = record.latency.context_tokens
    machine = "" if grid.where == f"a {record.machine} in {record.target.dtype}" else f" on {grid.where}"
    context = min((promise.cell.context_tokens for promise in eager), key=lambda tokens: abs(tokens - scored))
    pays = {promise.cell.batch: promise.speed > 1 for promise in eager if promise.cell.context_tokens == context}
    return f"; at {context} tokens of context{machine} predicted to pay {which_batches(pays)}"


def which_batches(pays: dict[int, bool]) -> str:
    """The batches at which a draft pays, out of those that were timed."""
    timed = sorted(pays)
    paying = [batch for batch in timed if pays[batch]]
    if not paying:
        return f"at no batch timed ({listed(timed)})"
    if paying == timed:
        return f"at every batch timed ({listed(timed)})"
    if paying == timed[: len(paying)]:
        return f"up to batch {paying[-1]}, not from batch {timed[len(paying)]} on"
    return f"at batch {listed(paying)} alone, of {listed(timed)} timed"


def listed(batches: Sequence[int]) -> str:
    return ", ".join(map(str, batches))


def batches_blocks(drafts: Sequence[ScoredDraft], grids: Grids) -> list[Block]:
    """The table of all cells, where its times are from, and what has no part in it."""
    if not grids:
        return [
            Absent(
                "Other batches and contexts: no step times of them. Give eval.latency_batch_sizes, or name a file with "
                "--latency."
            )
        ]
    table = batches_table(drafts, grids, "Speed by batch and context, predicted")
    origins = dict.fromkeys(f"{grid.path}, taken on {grid.grid.where}" for grid in grids.values())
    note = Sentence(
        f"Predicted for a batch whose rows are all at work, by the step times in {'; '.join(origins)}. 1x is the "
        f"target alone at the same batch.{batch_1_words(table)}"
    )
    return [by_draft(table), note, *absent_blocks(drafts, table)]


def absent_blocks(drafts: Sequence[ScoredDraft], table: Table) -> list[Block]:
    """The drafts that a table of batches lacks."""
    shown = {row[0] for row in table.rows}
    lacking = [draft.label for draft in drafts if draft.label not in shown]
    return [Absent(f"Speed by batch of {label}: no steps of it at a lookahead that was scored.") for label in lacking]


def undistilled_batches(drafts: Sequence[ScoredDraft], grids: Grids) -> list[Block]:
    """The same of drafts before they were distilled; nothing where no steps are known."""
    if not grids:
        return []
    table = batches_table(drafts, grids, "Speed by batch and context, predicted of undistilled drafts")
    return [*([table] if table.rows else []), *absent_blocks(drafts, table)]


def batch_1_words(table: Table) -> str:
    """That batch 1 is predicted twice on the page, where it is."""
    if not any(row[1] == "1" for row in table.rows):
        return ""
    return " At batch 1 it is not the scorecard's prediction, whose steps were timed at another moment."


def batches_table(drafts: Sequence[ScoredDraft], grids: Grids, caption: str) -> Table:
    """Every draft in every cell."""
    rows = [
        cells(draft, temperature, promise)
        for temperature in all_temperatures(drafts)
        for draft in scored_at(drafts, temperature)
        if draft.card.path in grids
        for promise in promises(draft, temperature, grids[draft.card.path].grid)
    ]
    return Table(COLUMNS, rows, caption)


def cells(draft: ScoredDraft, temperature: float, promise: Promise) -> tuple[str, ...]:
    """One draft in one cell."""
    cell = promise.cell
    return (
        draft.label,
        str(cell.batch),
        str(cell.context_tokens),
        cell.how,
        f"{temperature:g}",
        str(promise.lookahead),
        f"{promise.speed:.2f}x",
    )
