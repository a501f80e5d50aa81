"""One request of a stream, and what is told of those that are none."""

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

from architectures.errors import UserError
from eval.prompts import Prompt, Rows, UnreadRow, source_words
from eval.streams.config import Malformed


@dataclass(frozen=True)
class Request:
    """What somebody asks.

    Args:
        number: Its place in the stream, from 0.
        prompt: What is asked.
        source: Whose curve it is of: a data set, a language, a topic.
    """

    number: int
    prompt: Prompt
    source: str


class Labelled(NamedTuple):
    """A prompt and whose curve it is of."""

    prompt: Prompt
    label: str


@dataclass
class Skipped:
    """Rows that are no prompts: where they are. Asked to stop, the first of them is the last."""

    malformed: Malformed
    places: list[str] = field(default_factory=list)

    def readable(self, rows: Rows, labelled: Callable[[UnreadRow], Labelled | None]) -> Iterator[Labelled]:
        """What can be read of some rows.

        Raises:
            UserError: Of the first row that cannot, unless such are skipped.
        """
        with closing(rows):
            for row in rows:
                try:
                    readable = labelled(row)
                except UserError:
                    if self.malformed == "stop":
                        raise
                    self.places.append(row.where)
                    continue
                if readable is not None:
                    yield readable

    def words(self) -> str:
        """How many, and where the first of them are."""
        rows = "row is" if len(self.places) == 1 else "rows are"
        return f"{len(self.places)} malformed {rows} skipped: {source_words(self.places)}"


def say(words: str) -> None:
    """Tell whoever watches the process."""
    print(words, file=sys.stderr, flush=True)
