"""A run's stage and its time, and what all stages are derived from."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

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
class Part:
    """Work of a stage that is cut into equal pieces, each made by one process.

    Attributes:
        seconds: Of all pieces, on one device.
        pieces: 1 where nobody can help.
        is_even: Whether every process must make as many; else some wait for others at the end.
    """

    seconds: float
    pieces: int = 1
    is_even: bool = False

    def shared_s(self, processes: int) -> float | None:
        """Seconds until so many processes have made all, as if meeting took nothing; None where they may not share."""
        if self.is_even and self.pieces % processes:
            return None
        return self.seconds * ceil(self.pieces / processes) / self.pieces


def parts_of(seconds: float, pieces: tuple[int, ...]) -> Iterator[Part]:
    """A time as parts after each other, each of pieces that take as long as all others."""
    total = sum(pieces)
    return (Part(seconds * each / total, each) for each in pieces if each)


@dataclass(frozen=True)
class StageTime:
    """How long a stage takes.

    Attributes:
        name: What `check` calls it.
        seconds: On one device; None where it is not known.
        measured: Whether every speed in it was measured for this very kind of work.
        words: Amounts and speeds it is derived from, or why it is not known.
        processes: The most devices of one machine that can share it.
        parts: How its time is shared, one after another; all of it one process's where there are none.
        steps: Of a training, in each of which its processes meet.
    """

    name: str
    seconds: float | None
    measured: bool
    words: str
    processes: int = 1
    parts: tuple[Part, ...] = ()
    steps: int = 0

    def on(self, processes: int) -> float | None:
        """Seconds on so many devices, as if talking to each other took nothing; None where that is not known."""
        if self.seconds is None:
            return None
        shared = [part.shared_s(processes) for part in self.parts or (Part(self.seconds),)]
        return None if None in shared else sum(each for each in shared if each is not None)

    @property
    def serial_s(self) -> float:
        """Seconds in which one process works, however many there are."""
        return sum(part.seconds for part in self.parts or (Part(self.seconds or 0.0),) if part.pieces == 1)


def unknown(name: str, reason: str) -> StageTime:
    """A stage whose time cannot be told."""
    return StageTime(name, None, measured=False, words=reason)


def duration(seconds: float) -> str:
    """Seconds for people: "40 s", "6.2 min", "4.5 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
