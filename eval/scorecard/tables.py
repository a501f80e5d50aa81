"""Markdown tables of the scorecard, and the cells they share. Pure text."""

from collections.abc import Iterable, Sequence
from typing import Any

Record = dict[str, Any]


def rate(numerator: float, denominator: float, estimate: Record) -> str:
    """A rate beside its counts, without its interval."""
    shown = "none" if estimate["value"] is None else f"{estimate['value']:.3f}"
    return f"{shown} ({numerator:.1f} / {denominator:.1f})"


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)
