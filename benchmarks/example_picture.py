"""The picture of docs/example: how many times as fast as the target alone each way of decoding is, on four sets.

python -m benchmarks.example_picture docs/example/speeds.png
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from architectures.files.atomic import write_bytes
from architectures.pages.blocks import Figure
from eval.acceptance.estimates import Estimate
from eval.pages.drawing import draw_interval, draw_parity_line, in_legend, render, series_style
from eval.speed.ways import BESIDE, DRAFT, LOOKUP

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RESULTS = Path(__file__).parent / "results"
SETS = {
    "chat": "chat3-mixed-T0.json",
    "GSM8K": "chat3-gsm8k-T0.json",
    "XSum,\nnever seen": "chat3-xsum-T0.json",
    "all three,\nT = 1": "chat3-all-T1.json",
}
SHOWN = {DRAFT: "the draft", LOOKUP: "n-gram lookup, no draft", BESIDE: "the draft with its policy"}
APART = 0.2  # of the place that a set takes


def speeds(file: Path) -> dict[str, Estimate]:
    """Speed of decoding of every way that is shown, of the trained draft where there are two."""
    told = json.loads(file.read_text(encoding="utf-8"))
    trained = {None, next(iter(told["drafts"]))}
    ways = [row for row in told["ways"] if row["way"] in SHOWN and row["draft"] in trained]
    found = {row["way"]: row["decode"]["speedup"] for row in ways}
    return {way: Estimate(found[way]["value"], tuple(found[way]["interval"])) for way in SHOWN}


def draw(axes: "Axes", measured: Mapping[str, Mapping[str, Estimate]]) -> None:
    """A group of points for each set, a series for each way."""
    for index, (way, label) in enumerate(SHOWN.items()):
        places = [place + APART * (index - 1) for place in range(len(measured))]
        estimates = [of_set[way] for of_set in measured.values()]
        style = series_style(index)
        values = [estimate.value for estimate in estimates]
        axes.scatter(places, values, label=in_legend(label), color=style["color"], marker=style["marker"])
        for place, estimate in zip(places, estimates, strict=True):
            draw_interval(axes, place, estimate, index)
    draw_parity_line(axes)
    axes.set_xticks(range(len(measured)), list(measured))
    axes.grid(visible=False, axis="x")
    axes.set(ylabel="times the target alone")


def picture() -> bytes:
    measured = {name: speeds(RESULTS / file) for name, file in SETS.items()}
    alt = "Speed of decoding with the draft, with lookup and with both, the target alone being 1"
    return render(Figure("speeds", alt, alt, lambda axes: draw(axes, measured))).png


if __name__ == "__main__":
    write_bytes(picture(), Path(sys.argv[1]))
