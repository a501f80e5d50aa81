"""A file of JSON lines that is still being written."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import BinaryIO

from architectures.errors import UserError
from architectures.files.reading import require_regular, unreadable
from eval.prompts import MOST_CHARACTERS, UnreadRow, line_row
from eval.streams.request import say

POLL_S = 0.1


@dataclass(frozen=True)
class Waiting:
    """How a file is waited on.

    Attributes:
        idle_s: Seconds without a new line that end it; None waits for ever.
        sleep: Waits for so many seconds.
        clock: Seconds since some moment.
    """

    idle_s: float | None
    sleep: Callable[[float], None] = sleep
    clock: Callable[[], float] = monotonic


def followed_rows(path: Path, waiting: Waiting) -> Iterator[UnreadRow]:
    """Each whole line of a file, and each that is written to it later; blank lines are passed over but counted.

    Raises:
        UserError: If it cannot be read, has a line that is too long, or is cut or replaced meanwhile.
    """
    try:
        require_regular(path, remedy="Name a file of JSON lines.")
        with path.open("rb") as file:
            for number, line in enumerate(followed_lines(path, file, waiting), start=1):
                if line.strip():
                    yield line_row(line, f"{path}:{number}")  # bytes: json passes over a byte-order mark itself
    except OSError as error:
        raise UserError(unreadable(path, error, "Make the file before it is followed.")) from error


def followed_lines(path: Path, file: BinaryIO, waiting: Waiting) -> Iterator[bytes]:
    """Whole lines; a line without its end is none until that is written."""
    partial, since_s = b"", None
    while True:
        partial += file.readline(MOST_CHARACTERS)
        if partial.endswith(b"\n"):
            yield partial
            partial, since_s = b"", None
            continue
        if len(partial) >= MOST_CHARACTERS:
            raise UserError(f"{path}: has a line of over {MOST_CHARACTERS:,} bytes. Write one JSON object per line.")
        since_s = waiting.clock() if since_s is None else since_s
        if waiting.idle_s is not None and waiting.clock() - since_s >= waiting.idle_s:
            break
        refuse_another_file(path, file)
        waiting.sleep(POLL_S)
    if partial:
        say(f"{path}: ends in a line of {len(partial):,} bytes without its end, which is left out.")


def refuse_another_file(path: Path, file: BinaryIO) -> None:
    """Raise UserError where what was read is no longer the beginning of the file of this name."""
    now, ours = path.stat(), os.fstat(file.fileno())
    if now.st_ino != ours.st_ino or now.st_size < file.tell():
        raise UserError(
            f"{path}: was cut or replaced while it was followed. Append to a file that is followed, and start again."
        )
