"""Plots: matplotlib draws each once, and it becomes a PNG and the inside of an SVG whose colours the page decides.

Series differ in colour, marker and line, so that none is told by its colour alone. The colours are those of Okabe and
Ito 2008, "Color Universal Design", without the yellow, which white paper swallows.
"""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from architectures.pages.blocks import MOST_LETTERS, Figure, Judgement, folded
from eval.acceptance.estimates import Estimate
from eval.pages.svg import inside

INK, GRID, PAPER, SOFT = "#1b1b1b", "#cdcdcd", "#fefefe", "#5a5a5a"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
HATCHES = ("", "///", "\\\\", "xx")  # lines alone: dots are ten times the markup
JUDGED: dict[Judgement, tuple[str, str]] = {  # colour and marker of what a measurement decides
    "faster": (COLOURS[0], "^"),
    "slower": (COLOURS[1], "v"),
    "not decided": (SOFT, "D"),
    "not measured": (SOFT, "o"),
}
ROLES = {INK: "currentColor", GRID: "var(--grid)", PAPER: "var(--paper)", SOFT: "var(--soft)"} | {
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
    view_box, body = inside(svg.getvalue(), figure.name, ROLES)
    return Drawing(view_box, body, png.getvalue())


def svg_file(drawing: Drawing) -> str:
    """A drawing as an SVG file of its own, on white."""
    colours = "".join(f"{role[4:-1]}: {colour}; " for colour, role in ROLES.items() if role.startswith("var("))
    look = f"{colours}color: {INK}; background: white; font-family: sans-serif"
    name = "http://www.w3.org/2000/svg"
    return f'<svg xmlns="{name}" viewBox="{drawing.view_box}" style="{look}">{drawing.body}</svg>\n'


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


def draw_separate(axes: Axes, points: Sequence[tuple[float, float]], index: int, label: str) -> None:
    """Values of things that do not follow each other: the markers of a series without its line."""
    style: dict[str, Any] = {**series_style(index), "linestyle": "none"}
    axes.plot([x for x, _ in points], [y for _, y in points], label=in_legend(label), **style)


def draw_band(axes: Axes, x: Sequence[float], estimates: Sequence[Estimate], index: int, label: str | None) -> None:
    """Measured values close to each other: a line in a band from low to high; without a label a further part of it."""
    style: dict[str, Any] = {**series_style(index), "marker": "none"}
    axes.plot(x, [each.value for each in estimates], label=None if label is None else in_legend(label), **style)
    low, high = zip(*[each.interval or (each.value, each.value) for each in estimates], strict=True)
    axes.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)


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


@dataclass(frozen=True)
class SpeedRow:
    """One line of the picture of speeds.

    Attributes:
        name: What was measured or predicted.
        speed: Over the target alone.
        interval: Of it.
        judgement: What that decides.
        words: All of it in words.
        lookup: The speed of n-gram lookup in the same turns; None where it was not measured.
    """

    name: str
    speed: float
    interval: tuple[float, float] | None
    judgement: Judgement
    words: str
    lookup: float | None = None


ROW_INCHES, LINE_OF_ROW, FRAME_INCHES = 0.42, 0.4, 0.62  # of a row, of a further line of its name, of what is around
ROW_LETTERS = 25  # of a name, beside the words of its speed


def rows_height(rows: Sequence[SpeedRow]) -> float:
    """Inches that the picture of speeds needs."""
    return FRAME_INCHES + ROW_INCHES * (row_places(rows)[-1] + 1)


def row_places(rows: Sequence[SpeedRow]) -> list[float]:
    """Where the points of the rows stand; names of several lines have room above their points."""
    more = [LINE_OF_ROW * folded(row.name, ROW_LETTERS).count("\n") for row in rows]
    return [place + sum(more[: place + 1]) for place in range(len(rows))]


def draw_speed_rows(axes: Axes, rows: Sequence[SpeedRow]) -> None:
    """A line of words and an interval below it for each row; what is only predicted is open and dotted."""
    axes.axvline(1, color=INK, linewidth=1.2, label="the target alone (1x)")
    places = row_places(rows)
    for at, row in zip(places, rows, strict=True):
        draw_speed(axes, at, row)
    draw_lookups(axes, [(at, row.lookup) for at, row in zip(places, rows, strict=True) if row.lookup is not None])
    axes.set(ylim=(places[-1] + 0.4, -0.8), yticks=[])
    axes.spines["left"].set_visible(False)
    axes.margins(x=0.05)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.3g}x")


def draw_speed(axes: Axes, at: float, row: SpeedRow) -> None:
    """The point of a row with its interval, and its words above them."""
    colour, marker = JUDGED[row.judgement]
    predicted = row.judgement == "not measured"
    if row.interval is not None:
        axes.hlines(at, *row.interval, color=colour, linewidth=3, linestyle=":" if predicted else "-")
    fill = PAPER if predicted else colour
    axes.plot([row.speed], [at], marker=marker, markersize=9, color=colour, markerfacecolor=fill, linestyle="none")
    for x, words, side, weight in (
        (0.0, folded(row.name, ROW_LETTERS), "left", "bold"),
        (1.0, row.words, "right", "normal"),
    ):
        axes.text(
            x,
            at - 0.24,
            words,
            transform=axes.get_yaxis_transform(),
            ha=side,
            va="bottom",
            weight=weight,
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.5},
        )


def draw_lookups(axes: Axes, lookups: Sequence[tuple[float, float]]) -> None:
    """The speed of n-gram lookup in each row's own turns, as a stretch of a line."""
    if lookups:
        axes.vlines(
            [lookup for _, lookup in lookups],
            [at - 0.24 for at, _ in lookups],
            [at + 0.3 for at, _ in lookups],
            color=COLOURS[2],
            linewidth=2,
            linestyle=(0, (2, 1)),
            label="n-gram lookup, no draft",
        )
