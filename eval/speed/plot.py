"""Speed against the lookahead: measured, predicted, and what looking up gives. One PNG."""

from typing import TYPE_CHECKING, Any

from eval.report.blocks import Figure
from eval.speed.ways import DRAFT, LOOKUP, TRANSFORMERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Record = dict[str, Any]


def speed_plot(record: Record) -> bytes:
    """A PNG file: speed of decoding, where transformers is measured its speed with the prompt."""
    from eval.report.drawing import render

    alt = "Speed of decoding against the lookahead, the target alone being 1"
    return render(Figure("speed", alt, alt, lambda axes: draw(axes, record))).png


def draw(axes: "Axes", record: Record) -> None:
    """Every way as a series."""
    from eval.report.drawing import draw_one, draw_points, draw_predicted, whole_ticks

    by_way = {kind: rows_of(record, kind) for kind in (DRAFT, LOOKUP, TRANSFORMERS)}
    for place, (kind, rows) in enumerate(by_way.items()):
        if rows:
            estimates = [(row["decode"] or row["whole"])["speedup"] for row in rows]
            draw_points(axes, lookaheads(rows), estimates, place, f"{kind}, measured")
    drafts = by_way[DRAFT]
    draw_predicted(axes, lookaheads(drafts), [row["predicted"] for row in drafts], len(by_way), f"{DRAFT}, predicted")
    draw_one(axes)
    whole_ticks(axes, lookaheads(drafts))
    axes.set(xlabel="lookahead", ylabel="times as fast")


def rows_of(record: Record, kind: str) -> list[Record]:
    """The rows of a way, by lookahead."""
    return sorted((row for row in record["ways"] if row["way"] == kind), key=lambda row: row["lookahead"])


def lookaheads(rows: list[Record]) -> list[int]:
    """Of some rows."""
    return [row["lookahead"] for row in rows]
