"""Markdown tables of the scorecard, and the cells they share. Pure text."""

from collections.abc import Iterable, Sequence
from typing import Any

from eval.pages.verdict import with_interval

Record = dict[str, Any]


def rate(numerator: float, denominator: float, estimate: Record) -> str:
    """A rate beside its counts, without its interval."""
    shown = "none" if estimate["value"] is None else f"{estimate['value']:.3f}"
    return f"{shown} ({numerator:.1f} / {denominator:.1f})"


def with_coverage(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], records: Sequence[Record]
) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows with one of coverage behind, where a draft has a small head; "all" of one that says every id.

    Args:
        columns: Of a table.
        rows: Of it.
        records: What each row tells of, with a `coverage` where the draft says some ids alone.
    """
    found = [record.get("coverage") for record in records]
    return with_column(columns, rows, "coverage", [None if one is None else with_interval(one) for one in found])


def with_ids_said(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], models: Sequence[Record]
) -> tuple[list[str], list[list[Any]]]:
    """The same of models and how many ids each can say."""
    found = [model.get("head_vocab_size") for model in models]
    return with_column(columns, rows, "ids it says", [None if one is None else f"{one:,}" for one in found])


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
