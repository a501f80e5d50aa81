"""Step times of shapes of equal size against their number of layers. One PNG."""

from typing import TYPE_CHECKING, Any

from eval.pages.blocks import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Record = dict[str, Any]


def shapes_plot(record: Record) -> bytes:
    """A PNG file: a series for each size and each cell of the grid."""
    from eval.pages.drawing import render

    alt = "Milliseconds of a step of a draft against its number of layers, at equal size"
    return render(Figure("shapes", alt, alt, lambda axes: draw(axes, record))).png


def draw(axes: "Axes", record: Record) -> None:
    """Every size in every cell."""
    from eval.pages.drawing import draw_points, whole_ticks

    series = [(size, cell) for size in sizes_of(record) for cell in record["cells"]]
    for place, (size, cell) in enumerate(series):
        shapes = [shape for shape in record["shapes"] if shape["size"] == size]
        estimates = [one_token(cell, shape["name"]) for shape in shapes]
        draw_points(axes, [shape["layers"] for shape in shapes], estimates, place, label(size, cell))
    whole_ticks(axes, [shape["layers"] for shape in record["shapes"]])
    axes.set_ylim(bottom=0)
    axes.set(xlabel="layers", ylabel="milliseconds")


def sizes_of(record: Record) -> list[int]:
    """The sizes, in their order."""
    return list(dict.fromkeys(shape["size"] for shape in record["shapes"]))


def one_token(cell: Record, name: str) -> Record:
    """The median time of one token by a shape, with its interval."""
    [step] = [step for step in cell["together"]["steps"] if (step["model"], step["tokens"]) == (name, 1)]
    return step["p50_ms"]


def label(size: int, cell: Record) -> str:
    """What a series is of."""
    how = "compiled" if cell["compiled"] else "eager"
    return f"{size / 1e6:.0f}M, batch {cell['batch']}, {cell['context_tokens']} tokens, {how}"
