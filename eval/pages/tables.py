"""Old name; goes with its last importer."""

from collections.abc import Sequence
from dataclasses import replace

from architectures.tables import Table


def with_head_size(table: Table, counts: Sequence[int | None]) -> Table:
    if all(count is None for count in counts):
        return table
    rows = [(*row, "all" if count is None else f"{count:,}") for row, count in zip(table.rows, counts, strict=True)]
    return replace(table, columns=(*table.columns, "vocabulary"), rows=rows)
