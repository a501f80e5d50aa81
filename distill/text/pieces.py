"""The text of a domain in numbered pieces, each of which can be read without those before it.

A file that is not compressed is cut every PIECE_BYTES bytes, and a row belongs to the piece in which it begins: any
piece is found by its number. Rows of a `datasets` split, and of a compressed file, can only be read one after another,
so they lie in lanes: the files of the split are dealt to at most MOST_LANES of them, and piece i is the next
ROWS_PER_PIECE rows of lane i modulo lanes. Which text a piece holds depends on nothing but its number.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from architectures.errors import UserError
from architectures.files.reading import looked_for, parse_json, require_regular
from distill.recipe.sections.text import TextDomain, is_plain_text
from eval.prompts import require_object

if TYPE_CHECKING:
    from datasets import IterableDataset

PIECE_BYTES = 2**16  # enough that a call of the tokenizer costs nothing, few enough that little is read ahead
ROWS_PER_PIECE = 64  # likewise
MOST_LANES = 16  # streams that one process has open at a time

LaneState = dict[str, Any]  # how far a lane was read, as `datasets` has it


class Pieces(Protocol):
    """The pieces of one text.

    Attributes:
        lanes: Pieces whose numbers are equal modulo this are read in order; 0 where any piece is found by its number.
    """

    lanes: int

    def read(self, number: int) -> list[str] | None:
        """The texts of the rows of a piece; None where the text, or the piece's lane, has ended before it.

        Raises:
            UserError: If a row cannot be read or has no text.
        """
        ...

    def states(self) -> list[LaneState]:
        """How far each lane was read here."""
        ...

    def go_to(self, number: int, states: Sequence[LaneState]) -> None:
        """Stand where the pieces before that number, and no others, were read."""
        ...


class FilePieces:
    """Pieces of a file that is not compressed."""

    def __init__(self, domain: TextDomain, path: Path):
        self.domain, self.path, self.lanes = domain, path, 0
        require_regular(path, remedy=f"Mend or replace the path of text.domains {domain.name}.")

    def read(self, number: int) -> list[str] | None:
        """See Pieces."""
        try:
            found = self._lines(number * PIECE_BYTES)
        except (OSError, UnicodeDecodeError) as error:
            raise unreadable(self.domain, error) from error
        if found is None:
            return None
        begin, lines = found
        return lines if is_plain_text(str(self.path)) else [self._text(*each, begin) for each in enumerate(lines)]

    def states(self) -> list[LaneState]:
        """None is needed."""
        return []

    def go_to(self, number: int, states: Sequence[LaneState]) -> None:
        """Nothing is to be done."""

    def _lines(self, start: int) -> tuple[int, list[str]] | None:
        """The lines that begin in a piece, and at which byte the first does; None beyond the end of the file."""
        with self.path.open("rb") as file:
            before = min(start, 1)  # what ends the line before, if one begins at once
            file.seek(start - before)
            block = file.read(before + PIECE_BYTES)
            if len(block) <= before:
                return None
            first = block.find(b"\n") + 1 if before else 0
            if before and not 0 < first < len(block):
                return start, []  # a line that is longer than the piece
            if not block.endswith(b"\n"):
                block += file.readline()
        text = block[first:].decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
        return start - before + first, text.removesuffix("\n").split("\n")

    def _text(self, row: int, line: str, begin: int) -> str:
        if not line.strip():
            return ""
        try:
            return text_of(parse_row(line, "", self.domain), self.domain, "")
        except UserError:  # once more, with the number of the row, for which the file is read up to it
            number = row + 1 + self._rows_before(begin)
            where = f"{self.path}:{number}"
            return text_of(parse_row(line, where, self.domain), self.domain, f"row {number}")

    def _rows_before(self, begin: int) -> int:
        rows = 0
        with self.path.open("rb") as file:
            while begin > 0 and (block := file.read(min(begin, PIECE_BYTES))):
                rows, begin = rows + block.count(b"\n"), begin - len(block)
        return rows


class LanePieces:
    """Pieces of rows that are read one after another."""

    def __init__(self, domain: TextDomain, rows: Sequence["IterableDataset"]):
        self.domain, self.rows, self.lanes = domain, rows, len(rows)
        self.go_to(0, [each.state_dict() for each in rows])

    def read(self, number: int) -> list[str] | None:
        """See Pieces; pieces of its lane that others read are passed over."""
        piece, lane = divmod(number, self.lanes)
        while self.read_here[lane] < piece:
            self._next(lane)
        first = piece * ROWS_PER_PIECE + 1
        rows = self._next(lane)
        part = f" of part {lane + 1}" if self.lanes > 1 else ""
        return [self._text(row, number, part) for number, row in enumerate(rows, start=first)] if rows else None

    def states(self) -> list[LaneState]:
        """See Pieces."""
        return [each.state_dict() for each in self.rows]

    def go_to(self, number: int, states: Sequence[LaneState]) -> None:
        """See Pieces."""
        self.read_here = [len(range(lane, number, self.lanes)) for lane in range(self.lanes)]
        for rows, state in zip(self.rows, states, strict=True):
            rows.load_state_dict(state)
        self.iterators: list[Iterator[Any]] = [iter(each) for each in self.rows]

    def _next(self, lane: int) -> list[Any]:
        self.read_here[lane] += 1
        try:
            return list(islice(self.iterators[lane], ROWS_PER_PIECE))
        except read_errors() as error:
            raise unreadable(self.domain, error) from error

    def _text(self, row: Any, number: int, part: str) -> str:
        path = self.domain.path
        if path is None:
            return text_of(row, self.domain, f"row {number}{part}")
        if is_plain_text(path):
            return row["text"]
        if not row["text"].strip():
            return ""
        return text_of(parse_row(row["text"], f"{path}:{number}", self.domain), self.domain, f"row {number}")


def parse_row(line: str, where: str, domain: TextDomain) -> Mapping[str, Any]:
    """A line of JSON as a row."""
    row = parse_json(line, where, "Write one JSON object per line.")
    require_object(row, where, example=f'{{"{domain.field}": "Some text."}}')
    return row


def text_of(row: Mapping[str, Any], domain: TextDomain, name: str) -> str:
    """What a row holds in the domain's field."""
    text = row.get(domain.field)
    if not isinstance(text, str):
        raise UserError(
            f"{text_source(domain)}: {name} has no text in field {domain.field!r}, but the fields "
            f"{', '.join(row)}. Set field of text.domains {domain.name} to the one with the text."
        )
    return text


def open_pieces(domain: TextDomain) -> Pieces:
    """The pieces of a domain.

    Raises:
        UserError: If its text cannot be opened.
    """
    from datasets import IterableDataset, load_dataset

    try:
        if domain.path is not None and not domain.path.endswith(".gz"):
            return FilePieces(domain, openable(domain.path, domain))
        if domain.path is None:
            rows = load_dataset(cast("str", domain.dataset), domain.config, split=domain.split, streaming=True)
        else:
            openable(domain.path, domain)
            # JSON lines are read as lines too: pyarrow's JSON reader ends the process at deep nesting
            rows = load_dataset("text", data_files=domain.path, split="train", streaming=True)
    except UserError:
        raise
    except read_errors() as error:
        raise unreadable(domain, error) from error
    assert isinstance(rows, IterableDataset)
    lanes = max(1, min(rows.num_shards, MOST_LANES))
    dealt = [rows.shard(lanes, lane, contiguous=False) for lane in range(lanes)] if lanes > 1 else [rows]
    return LanePieces(domain, dealt)


def openable(path: str, domain: TextDomain) -> Path:
    """A file that can be read; why not is told here, which `datasets` does not."""
    file = Path(path)
    require_regular(file, remedy=f"Mend or replace the path of text.domains {domain.name}.")
    file.open("rb").close()
    return file


def read_errors() -> tuple[type[Exception], ...]:
    """What `datasets` raises where text is missing or is not what it should be."""
    from datasets.exceptions import DatasetsError

    # StopIteration where a JSON file has no rows; the last two of damaged gzip
    return (DatasetsError, OSError, ValueError, RuntimeError, StopIteration, EOFError, zlib.error)


def unreadable(domain: TextDomain, error: Exception) -> UserError:
    """The error as a message that names the domain."""
    reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or "it holds no rows"
    where = looked_for(Path(domain.path)) if domain.path and isinstance(error, FileNotFoundError) else ""
    return UserError(
        f"{text_source(domain)}: text.domains {domain.name} cannot be read ({reason}).{where} Mend or replace it."
    )


def text_source(domain: TextDomain) -> str:
    """Where a domain's text is, in words."""
    if domain.path is not None:
        return domain.path
    return f"dataset {domain.dataset}" + (f", config {domain.config}" if domain.config else "") + f", {domain.split}"
