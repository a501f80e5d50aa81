"""Text of one domain as packed sequences of token ids, streamed, from any position that was reached before.

A file of plain text is one document. Each row of JSON lines or of a `datasets` split is a document, framed by the
tokenizer's own special tokens and followed by its end-of-sequence token. Documents follow each other without a gap and
are cut every max_seq_len tokens; what is left at the end of the text is too short and not used.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from architectures.errors import UserError
from architectures.files.reading import looked_for, parse_json, require_regular
from distill.recipe.sections.text import TextConfig, TextDomain, is_plain_text
from eval.prompts.rows import require_object

if TYPE_CHECKING:
    from datasets import IterableDataset
    from transformers import PreTrainedTokenizerBase

ROWS_PER_CALL = 64  # of the tokenizer: enough that calls cost nothing, few enough that little is read ahead


@dataclass(frozen=True)
class TextPosition:
    """How far the text was read: the rows' own state, how many there were, and the tokens not yet in a sequence."""

    rows: dict[str, Any]
    num_rows: int
    tokens: tuple[int, ...]


class PackedText:
    """The sequences of one domain in the order of its text.

    Args:
        domain: Where the text is.
        max_seq_len: Tokens of every sequence.

    Raises:
        UserError: If the text cannot be opened.
    """

    def __init__(self, domain: TextDomain, tokenizer: "PreTrainedTokenizerBase", *, max_seq_len: int):
        self.domain = domain
        self.tokenizer = tokenizer
        self.max_seq_len = max_seq_len
        self.rows = open_rows(domain)
        self.go_to(TextPosition(self.rows.state_dict(), 0, ()))

    def position(self) -> TextPosition:
        """Where the next sequence begins."""
        return TextPosition(self.rows.state_dict(), self.num_rows, tuple(self.tokens))

    def go_to(self, position: TextPosition) -> None:
        """Continue from a position in this text."""
        self.rows.load_state_dict(position.rows)
        self.iterator = iter(self.rows)
        self.num_rows = position.num_rows
        self.tokens = list(position.tokens)

    def take(self, count: int) -> list[list[int]]:
        """The next sequences; fewer than `count` only where the text ends.

        Raises:
            UserError: If a row cannot be read or has no text.
        """
        length = self.max_seq_len
        while len(self.tokens) < count * length and (texts := self._texts()):
            self.tokens += self._token_ids(texts)
        count = min(count, len(self.tokens) // length)
        sequences = [self.tokens[i * length : (i + 1) * length] for i in range(count)]
        self.tokens = self.tokens[count * length :]
        return sequences

    def _texts(self) -> list[str]:
        """The texts of the next rows; none at the end."""
        try:
            rows = list(islice(self.iterator, ROWS_PER_CALL))
        except read_errors() as error:
            raise unreadable(self.domain, error) from error
        texts = [self._text(row, self.num_rows + number) for number, row in enumerate(rows, start=1)]
        self.num_rows += len(rows)
        return texts

    def _text(self, row: Any, number: int) -> str:
        path = self.domain.path
        if path is not None and not is_plain_text(path):
            if not row["text"].strip():
                return ""
            row = parse_json(row["text"], f"{path}:{number}", "Write one JSON object per line.")
            require_object(row, f"{path}:{number}", example=f'{{"{self.domain.field}": "Some text."}}')
        text = row.get(self.domain.field)
        if not isinstance(text, str):
            raise UserError(
                f"{text_source(self.domain)}: row {number} has no text in field {self.domain.field!r}, but the fields "
                f"{', '.join(row)}. Set field of text.domains {self.domain.name} to the one with the text."
            )
        return text

    def _token_ids(self, texts: list[str]) -> list[int]:
        if self.domain.path is not None and is_plain_text(self.domain.path):
            whole = "".join(f"{line}\n" for line in texts)
            return list(self.tokenizer(whole, add_special_tokens=False, verbose=False)["input_ids"])
        texts = [text for text in texts if text]
        documents = self.tokenizer(texts, verbose=False)["input_ids"] if texts else []
        end = cast("int", self.tokenizer.eos_token_id)
        return [token for ids in documents for token in (*ids, *([end] if ids[-1:] != [end] else []))]


class DomainStream:
    """The training sequences of one domain without end: blocks of the text, each in random order, again and again.

    Args:
        text: Standing at the first sequence that may be trained on; there is one.
        seed: Of the order; each pass over the text adds 1.
        block_size: Sequences read and put in order together.
    """

    def __init__(self, text: PackedText, *, seed: int, block_size: int):
        self.text = text
        self.start = text.position()
        self.seed = seed
        self.block_size = block_size
        self.epoch = self.block_number = 0
        self._read_block()

    def next_sequence(self) -> list[int]:
        """The next sequence, max_seq_len token ids."""
        if self.offset == len(self.block):
            self.block_number += 1
            self._read_block()
        sequence = self.block[self.order[self.offset]]
        self.offset += 1
        return sequence

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands, as plain values."""
        position = self.block_start
        return {
            "epoch": self.epoch,
            "block_number": self.block_number,
            "offset": self.offset,
            "rows": position.rows,
            "num_rows": position.num_rows,
            "tokens": list(position.tokens),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a stream of the same text stood."""
        self.epoch, self.block_number = state["epoch"], state["block_number"]
        self.text.go_to(TextPosition(state["rows"], state["num_rows"], tuple(state["tokens"])))
        self._read_block()
        self.offset = state["offset"]

    def _read_block(self) -> None:
        self.block_start = self.text.position()
        self.block = self.text.take(self.block_size)
        if not self.block:  # the text ended with the block before
            self.epoch, self.block_number = self.epoch + 1, 0
            self.text.go_to(self.start)
            self.block_start = self.start
            self.block = self.text.take(self.block_size)
        self.order = np.random.default_rng([self.seed + self.epoch, self.block_number]).permutation(len(self.block))
        self.offset = 0


def held_out_sequences(text: PackedText, *, count: int) -> list[list[int]]:
    """The first sequences of a domain; the text then stands at the first that may be trained on.

    Raises:
        UserError: If the text has not one sequence more than that.
    """
    held_out = text.take(count)
    start = text.position()
    num_sequences = len(held_out) + len(text.take(1))
    if num_sequences <= count:
        raise UserError(
            f"{text_source(text.domain)}: text.domains {text.domain.name} holds {num_sequences} sequences of "
            f"{text.max_seq_len} tokens, and {count} held out and one to train on are needed. "
            "Give more text, or lower text.num_eval_sequences or text.max_seq_len."
        )
    text.go_to(start)
    return held_out


def open_texts(config: TextConfig, tokenizer: "PreTrainedTokenizerBase") -> dict[str, PackedText]:
    """The text of every domain, by its name.

    Raises:
        UserError: If a text cannot be opened, or rows cannot be told apart because the tokenizer has no end token.
    """
    if tokenizer.eos_token_id is None:
        raise UserError(
            f"{tokenizer.name_or_path}: the tokenizer has no end-of-sequence token, which ends every document. "
            "Set its eos_token."
        )
    return {domain.name: PackedText(domain, tokenizer, max_seq_len=config.max_seq_len) for domain in config.domains}


def open_rows(domain: TextDomain) -> "IterableDataset":
    """The rows of a file or of a `datasets` split, streamed."""
    from datasets import IterableDataset, load_dataset

    try:
        if domain.path is None:
            rows = load_dataset(cast("str", domain.dataset), domain.config, split=domain.split, streaming=True)
        else:
            path = Path(domain.path)
            require_regular(path, remedy=f"Mend or replace the path of text.domains {domain.name}.")
            path.open("rb").close()  # says why it cannot be read, which `datasets` does not
            # JSON lines are read as lines too: pyarrow's JSON reader ends the process at deep nesting
            rows = load_dataset("text", data_files=domain.path, split="train", streaming=True)
    except UserError:
        raise
    except read_errors() as error:
        raise unreadable(domain, error) from error
    assert isinstance(rows, IterableDataset)
    return rows


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
