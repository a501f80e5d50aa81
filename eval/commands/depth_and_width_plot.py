"""Step times of shapes of equal size against their number of layers. One PNG."""

from typing import TYPE_CHECKING

from architectures.pages.blocks import Figure
from eval.records.grid import Cell, GridFigures

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def shapes_plot(record: GridFigures) -> bytes:
    """A PNG file: a series for each size and each cell of the grid."""
    from eval.pages.drawing import render

    alt = "Milliseconds of a step of a draft against its number of layers, at equal size"
    return render(Figure("shapes", alt, alt, lambda axes: draw(axes, record))).png


def draw(axes: "Axes", record: GridFigures) -> None:
    """Every size in every cell."""
    from eval.pages.drawing import draw_points, whole_ticks

    series = [(size, cell) for size in sizes_of(record) for cell in record.cells]
    for index, (size, cell) in enumerate(series):
        shapes = [shape for shape in record.shapes or () if shape.size == size]
        estimates = [cell.together.of(shape.name, 1).p50_ms for shape in shapes]
        draw_points(axes, [shape.layers for shape in shapes], estimates, index, label(size, cell))
    whole_ticks(axes, [shape.layers for shape in record.shapes or ()])
    axes.set_ylim(bottom=0)
    axes.set(xlabel="layers", ylabel="milliseconds")


def sizes_of(record: GridFigures) -> list[int]:
    """The sizes, in their order."""
    return list(dict.fromkeys(shape.size for shape in record.shapes or ()))


def label(size: int, cell: Cell) -> str:
    """What a series is of."""
    return f"{size / 1e6:.0f}M, batch {cell.batch}, {cell.context_tokens} tokens, {cell.how}"
