"""Markdown tables of the scorecard, and the cells they share. Pure text."""

from collections.abc import Iterable, Sequence
from typing import Any

from eval.pages.verdict import with_interval
from eval.records.values import HasInterval


def rate(numerator: float, denominator: float, estimate: HasInterval) -> str:
    """A rate beside its counts, without its interval."""
    shown = "none" if estimate.value is None else f"{estimate.value:.3f}"
    return f"{shown} ({numerator:.1f} / {denominator:.1f})"


def with_coverage(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], coverages: Sequence[HasInterval | None]
) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows with one of coverage behind, where a draft has a small head; "all" of one that says every id.

    Args:
        columns: Of a table.
        rows: Of it.
        coverages: Of each row; None where the draft says every id.
    """
    return with_column(columns, rows, "coverage", [None if one is None else with_interval(one) for one in coverages])


def with_ids_said(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], counts: Sequence[int | None]
) -> tuple[list[str], list[list[Any]]]:
    """The same of models and how many ids each can say."""
    return with_column(columns, rows, "ids it says", [None if one is None else f"{one:,}" for one in counts])


def with_column(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], name: str, cells: Sequence[str | None]
) -> tuple[list[str], list[list[Any]]]:
    """A table with one column more unless all of its cells are None; "all" stands for None."""
    if all(cell is None for cell in cells):
        return list(columns), [list(row) for row in rows]
    return [*columns, name], [[*row, "all" if cell is None else cell] for row, cell in zip(rows, cells, strict=True)]


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)
