"""What a page is made of: sections of tables, sentences, figures and texts. Values; each medium renders all of them."""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LETTERS = 24  # that a plot has space for beside its bars, or beside each other below it


@dataclass(frozen=True)
class Table:
    """Rows of cells; the first cell of a row says what the row is about. The caption may be empty."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    caption: str = ""


Judgement = Literal["faster", "slower", "not decided", "not measured"]
MARKS: dict[Judgement, str] = {"faster": "▲", "slower": "▼", "not decided": "◆", "not measured": "○"}


@dataclass(frozen=True)
class Judged:
    """A cell that says what a measurement decides: by a mark and words, and by a colour where there are colours."""

    judgement: Judgement

    def __str__(self) -> str:
        return f"{MARKS[self.judgement]} {self.judgement}"


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


@dataclass(frozen=True)
class Sentence:
    """Plain words."""

    text: str


@dataclass(frozen=True)
class Verdict:
    """The sentence that a page is read for."""

    text: str


@dataclass(frozen=True)
class Caution:
    """What must be known before a page is believed."""

    text: str


@dataclass(frozen=True)
class Absent:
    """What no file holds, and why, or what would bring it."""

    text: str


@dataclass(frozen=True)
class Facts:
    """Names and what they stand for."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Items:
    """Sentences side by side, none of which leads to the next."""

    texts: Sequence[str]


@dataclass(frozen=True)
class Code:
    """Lines to be typed or copied as they stand."""

    text: str


@dataclass(frozen=True)
class MarkedText:
    """A decoded text in pieces, each with the writer it is of.

    Attributes:
        source: Where its prompt is from.
        prompt: That it answers.
        pieces: Text and writer, marked so that they are told apart without colours too.
    """

    source: str
    prompt: str
    pieces: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Texts:
    """Decoded texts; the legend has a piece for each writer."""

    caption: str
    legend: Sequence[tuple[str, str]]
    examples: Sequence[MarkedText]

    @property
    def alt(self) -> str:
        """The texts, marked but without colours."""
        answers = ("".join(text for text, _ in example.pieces) for example in self.examples)
        return "\n\n".join([self.caption, " ".join(text for text, _ in self.legend), *answers])


@dataclass(frozen=True)
class Folded:
    """What few readers ask for: its title alone is seen until it is opened."""

    title: str
    blocks: "Sequence[Block]"


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it; `name` is what links of an HTML page go to."""

    title: str
    blocks: "Sequence[Block]"
    name: str = ""


Block = Table | Figure | Sentence | Verdict | Caution | Absent | Facts | Items | Code | Texts | Folded | Section


def folded(name: str, most: int = MOST_LETTERS) -> str:
    """A name on as many lines as a plot needs to show it."""
    return textwrap.fill(name, most)
