"""Speed against the lookahead: measured, predicted, and what looking up gives. One PNG."""

from typing import TYPE_CHECKING

from architectures.pages.blocks import Figure
from eval.records.speed import SpeedFile, SpeedWay
from eval.speed.page import label_of
from eval.speed.ways import DRAFT

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def speed_plot(record: SpeedFile) -> bytes:
    """A PNG file: speed of decoding, where transformers is measured its speed with the prompt."""
    from eval.pages.drawing import render

    alt = "Speed of decoding against the lookahead, the target alone being 1"
    return render(Figure("speed", alt, alt, lambda axes: draw(axes, record))).png


def draw(axes: "Axes", record: SpeedFile) -> None:
    """Every way as a series, and what is predicted of each draft."""
    from eval.pages.drawing import draw_parity_line, draw_points, draw_predicted, whole_ticks

    series: dict[str, list[SpeedWay]] = {}
    for row in sorted(record.ways, key=lambda row: row.lookahead):
        if row.lookahead:
            series.setdefault(label_of(row), []).append(row)
    for index, (label, rows) in enumerate(series.items()):
        estimates = [(row.decode or row.whole).speedup for row in rows]
        draw_points(axes, lookaheads(rows), estimates, index, f"{label}, measured")
        if rows[0].way == DRAFT:
            predicted = [row.predicted.value for row in rows if row.predicted is not None]
            draw_predicted(axes, lookaheads(rows), predicted, index, f"{label}, predicted")
    draw_parity_line(axes)
    whole_ticks(axes, [lookahead for rows in series.values() for lookahead in lookaheads(rows)])
    axes.set(xlabel="lookahead", ylabel="times as fast")


def lookaheads(rows: list[SpeedWay]) -> list[int]:
    return [row.lookahead for row in rows]
