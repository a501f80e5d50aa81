"""Plots: matplotlib draws each once, and it becomes a PNG and the inside of an SVG whose colours the page decides.

Series differ in colour, marker and line, so that none is told by its colour alone. The colours are those of Okabe and
Ito 2008, "Color Universal Design", without the yellow, which white paper swallows.
"""

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from architectures.pages.blocks import MOST_LETTERS, Figure, folded
from eval.acceptance.estimates import Estimate

INK, GRID, PAPER = "#1b1b1b", "#cdcdcd", "#fefefe"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
HATCHES = ("", "///", "...", "xxx")
ROLES = {INK: "currentColor", GRID: "var(--grid)", PAPER: "var(--paper)"} | {
    colour: f"var(--series-{number})" for number, colour in enumerate(COLOURS, start=1)
}
STYLE: dict[str, Any] = {
    "font.size": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "grid.color": GRID,
    "legend.frameon": False,
    "lines.markersize": 5,
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name may hold a dollar sign
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "hatch.color": PAPER,
}
PNG_DPI = 200
LINE_INCHES = 0.2  # of a legend


@dataclass(frozen=True)
class Drawing:
    """A figure drawn.

    Attributes:
        view_box: Of the SVG, in points.
        body: Of the SVG: markup, without the element around it. No name in it is that of another figure's.
        png: The file.
    """

    view_box: str
    body: str
    png: bytes


def render(figure: Figure) -> Drawing:
    style: dict[Any, Any] = {**STYLE, "svg.hashsalt": figure.name}  # without a salt, ids are random
    with mpl.rc_context(style):
        canvas = Canvas(figsize=(figure.width, figure.height), layout="constrained")
        axes = canvas.add_subplot()
        figure.draw(axes)
        add_legend(canvas, axes)
        svg, png = io.StringIO(), io.BytesIO()
        canvas.savefig(
            svg, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
        )
        canvas.savefig(png, format="png", dpi=PNG_DPI, facecolor="white", metadata={"Software": None})
    view_box, body = inside(svg.getvalue(), figure.name)
    return Drawing(view_box, body, png.getvalue())


def add_legend(canvas: Canvas, axes: Axes) -> None:
    """Name the series below the plot, where there is one to name; more lines than two make the canvas higher."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        columns = 1 if max(map(len, labels)) > MOST_LETTERS else 2
        shown = [folded(label.strip(), 2 * MOST_LETTERS) for label in labels]
        lines = sum(name.count("\n") + 1 for name in shown) / columns
        canvas.set_figheight(canvas.get_figheight() + LINE_INCHES * max(0.0, lines - 2))
        canvas.legend(handles, shown, loc="outside lower center", ncols=columns)


def in_legend(name: str) -> str:
    """A name that matplotlib does not leave out of the legend, as it does with those that begin with _."""
    return f" {name}"


def inside(svg: str, name: str) -> tuple[str, str]:
    """The view box and the markup of an SVG file, with names and colours that suit a page of several."""
    svg_tag = re.search(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', svg)
    assert svg_tag is not None, "matplotlib writes a view box"
    body = svg[svg_tag.end() : svg.rindex("</svg>")]
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'\b(?:xlink:)?href="#', f'href="#{name}-', body)
    body = body.replace("url(#", f"url(#{name}-")
    for colour, role in ROLES.items():
        body = body.replace(colour, role)
    return svg_tag.group(1), body


def series_style(index: int) -> dict[str, Any]:
    """Colour, marker and line of a series; no two of the first 210 are alike."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": LINES[index % len(LINES)],
    }


def draw_points(axes: Axes, x: Sequence[float], estimates: Sequence[Estimate], index: int, label: str) -> None:
    """Measured values as a series, with a bar for each interval."""
    axes.plot(x, [estimate.value for estimate in estimates], label=in_legend(label), **series_style(index))
    for at, estimate in zip(x, estimates, strict=True):
        draw_interval(axes, at, estimate, index)


def draw_measured(axes: Axes, x: float, estimate: Estimate, index: int, label: str) -> None:
    """A single measured value, larger than the points of a series, with its interval."""
    style = series_style(index) | {"linestyle": "none", "markersize": 10, "zorder": 1.5}  # a point stays seen on it
    axes.plot([x], [estimate.value], label=in_legend(label), **style)
    draw_interval(axes, x, estimate, index)


def draw_interval(axes: Axes, x: float, estimate: Estimate, index: int) -> None:
    """A bar from low to high; nothing where there is no interval."""
    if estimate.interval is not None:
        axes.vlines(x, *estimate.interval, color=COLOURS[index % len(COLOURS)], linewidth=3, alpha=0.4)


def draw_predicted(axes: Axes, x: Sequence[float], y: Sequence[float], index: int, label: str) -> None:
    """Predicted values as a series, with open markers: only what was measured is filled."""
    axes.plot(x, y, label=in_legend(label), markerfacecolor=PAPER, **series_style(index))


def draw_ring(axes: Axes, x: float, y: float) -> None:
    """A ring around a point of a series."""
    axes.plot([x], [y], marker="o", markersize=14, markerfacecolor="none", color=INK, linestyle="none")


def draw_curve(axes: Axes, x: Sequence[float], y: Sequence[float], index: int, label: str) -> None:
    """What a formula says beside measured values: thin, dotted, without markers."""
    style = {"color": COLOURS[index % len(COLOURS)], "linestyle": (0, (1, 2)), "linewidth": 1.2}
    axes.plot(x, y, label=in_legend(label), **style)


def whole_ticks(axes: Axes, values: Iterable[int]) -> None:
    """Ticks at whole numbers alone."""
    axes.set_xticks(sorted(set(values)))


def draw_parity_line(axes: Axes) -> None:
    """The line at which neither way is faster."""
    axes.axhline(1, color=INK, linewidth=1)


def draw_parts(axes: Axes, rows: Sequence[str], parts: Sequence[str], values: Sequence[Sequence[float | None]]) -> None:
    """A bar for each row, parted; the first row is on top. Parts differ in colour and hatch."""
    starts = [0.0] * len(rows)
    for index, part in enumerate(parts):
        widths = [row[index] or 0.0 for row in values]
        axes.barh(
            range(len(rows)),
            widths,
            left=starts,
            label=part,
            color=COLOURS[index],
            hatch=HATCHES[index],
            edgecolor=PAPER,
        )
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    axes.set_yticks(range(len(rows)), [folded(row) for row in rows])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
