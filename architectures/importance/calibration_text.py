"""The text that calibration sequences are made of: read, and refused where it is too short. No torch."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from architectures.errors import UserError
from architectures.files.reading import require_regular, unreadable

REMEDY = "Give a UTF-8 text file as architecture.calibration.text."
MAX_PARAGRAPH_CHARS = 100_000  # a file without blank lines is handed over in pieces, never read as a whole


def tokens_needed(tokens: int, sequence_len: int) -> int:
    """Of the whole sequences that so many tokens allow."""
    return tokens // sequence_len * sequence_len


def calibration_ids(
    texts: Iterable[str],
    encode: Callable[[str], list[int]],
    separator: int | None,
    *,
    tokens: int,
    sequence_len: int,
    named: str = "The calibration text has",
) -> list[int]:
    """The first ids of the texts, one after the other, as many as whole sequences have.

    No text is read that is not needed.

    Args:
        texts: Plain texts; empty ones are passed over.
        encode: A text's ids, without special tokens.
        separator: Stands between two texts; None leaves it out.
        tokens: At most so many are used, >= sequence_len.
        sequence_len: Tokens per sequence.
        named: Begins the message of texts that are too short.

    Raises:
        UserError: If the texts are too short.
    """
    needed = tokens_needed(tokens, sequence_len)
    ids: list[int] = []
    for text in texts:
        token_ids = encode(text)
        if ids and token_ids and separator is not None:
            ids.append(separator)
        ids += token_ids
        if len(ids) >= needed:
            return ids[:needed]
    raise UserError(
        f"{named} {len(ids)} tokens, {needed} are asked for ({needed // sequence_len} sequences of "
        f"{sequence_len}). Lower architecture.calibration.tokens, or give a longer text as "
        "architecture.calibration.text."
    )


def read_text(file: Path) -> Iterator[str]:
    """The paragraphs of a plain text file, which blank lines part.

    Raises:
        UserError: When the first one is asked for, if the file cannot be read or holds none.
    """
    has_text = False
    try:
        require_regular(file, remedy=REMEDY)
        with file.open(encoding="utf-8") as stream:
            for paragraph in paragraphs(iter(partial(stream.readline, MAX_PARAGRAPH_CHARS), "")):
                has_text = True
                yield paragraph
    except OSError as error:
        raise UserError(unreadable(file, error, REMEDY)) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: cannot be read as text ({error}). {REMEDY}") from error
    if not has_text:
        raise UserError(f"{file}: holds no text. Give another file as architecture.calibration.text.")


def paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Neighbouring lines that are not blank, joined; long ones in pieces."""
    gathered, num_chars = [], 0
    for line in lines:
        if gathered and (not line.strip() or num_chars > MAX_PARAGRAPH_CHARS):
            yield "".join(gathered)
            gathered, num_chars = [], 0
        if line.strip():
            gathered.append(line)
            num_chars += len(line)
    if gathered:
        yield "".join(gathered)
