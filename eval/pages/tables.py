"""Tables and cells that several pages of scorecards share. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from architectures.pages.blocks import Table
from eval.pages.verdict import with_interval
from eval.records.values import HasInterval


def rate(numerator: float, denominator: float, estimate: HasInterval) -> str:
    """A rate beside its counts, without its interval."""
    shown = "none" if estimate.value is None else f"{estimate.value:.3f}"
    return f"{shown} ({numerator:.1f} / {denominator:.1f})"


def with_coverage(table: Table, coverages: Sequence[HasInterval | None]) -> Table:
    """A table with a column of coverage behind, where a draft has a small head; "all" of one with a whole head.

    Args:
        table: Of drafts.
        coverages: Of each row; None of a whole head.
    """
    return with_column(
        table, "coverage", [None if coverage is None else with_interval(coverage) for coverage in coverages]
    )


def with_head_size(table: Table, counts: Sequence[int | None]) -> Table:
    """The same of models and their numbers of output ids."""
    return with_column(table, "ids it says", [None if count is None else f"{count:,}" for count in counts])


def with_column(table: Table, name: str, cells: Sequence[str | None]) -> Table:
    """A table with one column more unless all of its cells are None; "all" stands for None."""
    if all(cell is None for cell in cells):
        return table
    rows = [(*row, "all" if cell is None else cell) for row, cell in zip(table.rows, cells, strict=True)]
    return replace(table, columns=(*table.columns, name), rows=rows)


def by_draft(table: Table) -> Table:
    """A table whose first column names a draft; where it is always the same, its name moves into the caption."""
    names = {row[0] for row in table.rows}
    if len(names) > 1:
        return table
    return Table(table.columns[1:], [row[1:] for row in table.rows], f"{table.title}: {names.pop()}")
