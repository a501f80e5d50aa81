"""Which steps are timed on which machine, in order of worth. Pure; no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from architectures.settings import How
from benchmarks.gpu.stage import Size
from eval.scorecard_schema import TARGET


class Cell(NamedTuple):
    """Steps that are timed in one place.

    Attributes:
        how: They are run.
        batch: Rows.
        context: Tokens in each row before a step.
        only: Shapes, one token of each; empty for all shapes and all numbers of tokens.
    """

    how: How
    batch: int
    context: int
    only: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is timed at one size of the bench.

    Attributes:
        target: A named shape, or TARGET for the setting's own.
        drafts: Named shapes; of the setting's own target, so many of its layers.
        cells: The most valuable first.
        verified: Tokens that the target reads at once, by how steps are run.
        pairs: Shapes of equal size, the deeper first.
        equal: Layers of shapes of equal size that are made for the purpose.
        equal_share: Their parameters, as a share of the target's.
        equal_cell: Where their steps are timed, behind this cell.
        repeats: Timed repetitions; six are the least that give an interval.
        cell_s: About the seconds that one shape in one cell takes.
    """

    target: str
    drafts: tuple[str | int, ...]
    cells: tuple[Cell, ...]
    verified: Mapping[How, tuple[int, ...]]
    pairs: tuple[tuple[str, str], ...] = ()
    equal: tuple[int, ...]
    equal_share: float
    equal_cell: Cell
    repeats: int
    cell_s: Mapping[How, float]


MOST_WARM_UPS = 3  # untimed repetitions before them
AIM_SHAPE, AIM_CELL = "wide-796m", Cell("captured", 1, 128)
SOME, ALL = (1, 2, 3, 5, 9), tuple(range(1, 10))

SIZES: dict[Size, Sizes] = {
    "full": Sizes(
        target="llama-7b",
        drafts=("wide-796m", "wide-1.3b", "wide-543m", "wide-290m", "deep-1.3b"),
        cells=(
            Cell("captured", 1, 128),
            Cell("captured", 1, 1024),
            Cell("captured", 32, 1024),
            Cell("captured", 8, 1024),
            Cell("eager", 1, 1024),
            Cell("captured", 8, 128),
            Cell("captured", 32, 128),
        ),
        verified={"captured": ALL, "eager": SOME},
        pairs=(("deep-1.3b", "wide-1.3b"),),
        equal=(1, 2, 4, 8, 16, 32),
        equal_share=0.118,  # 796M
        equal_cell=Cell("captured", 1, 128),
        repeats=12,
        cell_s={"captured": 2, "eager": 3},
    ),
    "laptop": Sizes(
        target=TARGET,
        drafts=(6, 4, 2, 1),
        cells=(
            Cell("eager", 1, 128),
            Cell("eager", 8, 128),
            Cell("eager", 1, 1024),
            Cell("captured", 1, 128),
            Cell("eager", 8, 1024),
        ),
        verified={"captured": ALL, "eager": SOME},
        equal=(1, 4, 16),
        equal_share=0.25,
        equal_cell=Cell("eager", 1, 128),
        repeats=8,
        cell_s={"captured": 5, "eager": 10},
    ),
    "tiny": Sizes(
        target=TARGET,
        drafts=(2, 1),
        cells=(Cell("eager", 1, 8), Cell("eager", 3, 20), Cell("captured", 1, 8)),
        verified={"captured": (1, 2, 3), "eager": (1, 2, 3)},
        equal=(1, 2),
        equal_share=0.5,
        equal_cell=Cell("eager", 1, 8),
        repeats=6,
        cell_s={"captured": 1, "eager": 1},
    ),
}
