"""What a page is made of: sections of tables, figures, sentences and texts. Values only; page.py makes them HTML."""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from eval.rounds.examples import Example

MOST_LETTERS = 24  # that a plot has room for beside its bars, or beside each other below it


@dataclass(frozen=True)
class Table:
    """Rows of cells; the first cell of a row says what the row is about."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    kind: Literal["table"] = field(default="table", init=False)


@dataclass(frozen=True)
class Figure:
    """A plot.

    Attributes:
        name: Of its PNG file, and of what its SVG names.
        alt: Its content in words, for who cannot see it.
        caption: What it shows.
        draw: Draws it.
        width: Inches; of a size that a phone shows without shrinking the letters.
        height: Inches.
    """

    name: str
    alt: str
    caption: str
    draw: "Callable[[Axes], None]"
    width: float = 5.0
    height: float = 3.6
    kind: Literal["figure"] = field(default="figure", init=False)


@dataclass(frozen=True)
class Sentence:
    """Plain words."""

    text: str
    kind: Literal["sentence"] = field(default="sentence", init=False)


@dataclass(frozen=True)
class Absent:
    """What no file holds, and why, or what would bring it."""

    text: str
    kind: Literal["absent"] = field(default="absent", init=False)


@dataclass(frozen=True)
class Facts:
    """Names and what they stand for."""

    pairs: Sequence[tuple[str, str]]
    kind: Literal["facts"] = field(default="facts", init=False)


@dataclass(frozen=True)
class Texts:
    """Decoded texts, each piece told apart by its writer."""

    caption: str
    examples: "Sequence[Example]"
    kind: Literal["texts"] = field(default="texts", init=False)


def table_by_draft(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table whose rows begin with the name of a draft, which moves into the caption where it is always the same."""
    names = {row[0] for row in rows}
    if len(names) > 1:
        return Table(caption, ("draft", *columns), rows)
    return Table(f"{caption}: {names.pop()}", columns, [row[1:] for row in rows])


def folded(name: str, most: int = MOST_LETTERS) -> str:
    """A name on as many lines as a plot needs to show it."""
    return textwrap.fill(name, most)


Block = Table | Figure | Sentence | Absent | Facts | Texts


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    name: str
    title: str
    blocks: Sequence[Block]
