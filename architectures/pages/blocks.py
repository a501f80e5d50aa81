"""Old names of what architectures.tables has; goes with its last importer."""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from architectures.tables import Block, Section, Table, code, facts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Block", "Section", "Table"]

MOST_LETTERS = 24  # that a plot has space for beside its bars, or beside each other below it
Judgement = Literal["faster", "slower", "not decided", "not measured"]
MARKS: dict[Judgement, str] = {"faster": "▲", "slower": "▼", "not decided": "◆", "not measured": "○"}


class Sentence(str):
    """A paragraph."""

    __slots__ = ()

    @property
    def text(self) -> str:
        return str(self)


class Verdict(Sentence): ...


class Absent(Sentence): ...


class Caution(Sentence):
    def __new__(cls, text: str) -> "Caution":
        return super().__new__(cls, f"WARNING: {text}")


class Code(Sentence):
    def __new__(cls, text: str) -> "Code":
        return super().__new__(cls, code(text))


class Items(Sentence):
    def __new__(cls, texts: Sequence[str]) -> "Items":
        return super().__new__(cls, "\n".join(f"- {text}" for text in texts))


class Folded(Section): ...


Facts = facts


@dataclass(frozen=True)
class Judged:
    judgement: Judgement

    def __str__(self) -> str:
        return f"{MARKS[self.judgement]} {self.judgement}"


@dataclass(frozen=True)
class Figure:
    """A plot: its file name, its content in words, its caption, and what draws it; sizes in inches."""

    name: str
    alt: str
    caption: str
    draw: "Callable[[Axes], None]"
    width: float = 5.0
    height: float = 3.6


@dataclass(frozen=True)
class MarkedText:
    source: str
    prompt: str
    pieces: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Texts:
    caption: str
    legend: Sequence[tuple[str, str]]
    examples: Sequence[MarkedText]


def folded(name: str, most: int = MOST_LETTERS) -> str:
    """A name on as many lines as a plot needs to show it."""
    return textwrap.fill(name, most)
