"""Calibration text, read and cut into token sequences of one length, on which a target's parts are scored.

Shape suffixes used in this file:
    S = sequences, T = tokens per sequence
"""

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from architectures.errors import UserError
from architectures.files.reading import require_regular, unreadable

REMEDY = "Give a UTF-8 text file as architecture.calibration.text."
MAX_PARAGRAPH_CHARS = 100_000  # a file without blank lines is handed over in pieces, never read as a whole
SEQUENCE_LEN = 256


def calibration_sequences(
    texts: Iterable[str], tokenizer: Any, *, tokens: int, context_tokens: int | None = None
) -> Tensor:
    """ids_ST: the texts one after the other, in sequences of 256 tokens; few tokens in four shorter ones.

    Between two texts stands the end-of-sequence token, where the tokenizer has one. No text is read that is not needed.

    Args:
        texts: Plain texts; empty ones are passed over.
        tokenizer: Of the target.
        tokens: At most this number is used, >= 4.
        context_tokens: That the model was made for; no sequence is longer. None where there is no end.

    Raises:
        UserError: If the texts are too short.
    """
    sequence_len = min(SEQUENCE_LEN, tokens // 4, context_tokens or SEQUENCE_LEN)
    needed = tokens // sequence_len * sequence_len
    ids: list[int] = []
    for text in texts:
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        if ids and token_ids and tokenizer.eos_token_id is not None:
            ids.append(tokenizer.eos_token_id)
        ids += token_ids
        if len(ids) >= needed:
            return torch.tensor(ids[:needed]).view(-1, sequence_len)
    raise UserError(
        f"The calibration text has {len(ids)} tokens, {needed} are needed ({needed // sequence_len} sequences of "
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
