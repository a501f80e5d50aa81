"""A run's stage and its time, and what all stages are derived from."""

from dataclasses import dataclass

from architectures.shapes.shape import Shape
from distill.estimates.expected_work import Work
from distill.expected_time.lengths import Lengths
from distill.recipe.recipe import Recipe


@dataclass(frozen=True)
class PlannedRun:
    """What times are derived from.

    Attributes:
        recipe: The recipe.
        target: Shape of what answers and teaches.
        draft: Shape of what is trained.
        source: Shape of what it is cut out of.
        work: How many answers there will be.
        lengths: How long they are.
    """

    recipe: Recipe
    target: Shape
    draft: Shape
    source: Shape
    work: Work
    lengths: Lengths


@dataclass(frozen=True)
class StageTime:
    """How long a stage takes.

    Attributes:
        name: What `check` calls it.
        seconds: On one device; None where it is not known.
        measured: Whether every speed in it was measured for this very kind of work.
        words: Amounts and speeds it is derived from, or why it is not known.
        processes: The most devices of one machine that can share it.
    """

    name: str
    seconds: float | None
    measured: bool
    words: str
    processes: int = 1


def unknown(name: str, reason: str) -> StageTime:
    """A stage whose time cannot be told."""
    return StageTime(name, None, measured=False, words=reason)


def duration(seconds: float) -> str:
    """Seconds for people: "40 s", "6.2 min", "4.5 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
