"""Text of one domain as packed sequences of token ids, streamed by `datasets`, from any position reached before.

A plain text file is one document. Each row of JSON lines or of a `datasets` split is a document with the tokenizer's
own special tokens, followed by its end-of-sequence token. Documents follow each other without a gap and are cut every
max_seq_len tokens; the rest at the end of the text is not used.

All processes of a training read the same text, so the sequences do not depend on the number of processes:
`split_dataset_by_node` would give each process another one.

Shape suffixes used in this file:
    N = sequences, T = tokens per sequence
"""

import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from architectures.errors import UserError
from architectures.files.reading import looked_for, parse_json, require_regular
from distill.recipe.sections.text import TextConfig, TextDomain, is_plain_text
from eval.prompts import require_object

if TYPE_CHECKING:
    from datasets import IterableDataset
    from transformers import PreTrainedTokenizerBase

IDS = np.int32
READER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="text")  # of blocks, ahead of training
ROWS_PER_CHUNK = 64  # enough that a call of the tokenizer costs nothing, few enough that little is read ahead


@dataclass(frozen=True)
class Position:
    """A place in a text: a chunk of rows by its number, the state of `datasets` before it, and tokens of it to skip."""

    chunk: int
    rows: dict[str, Any]
    offset: int


class PackedText:
    """The sequences of one domain in the order of its text.

    Args:
        domain: Where the text is.
        max_seq_len: Tokens of every sequence.

    Raises:
        UserError: If the text cannot be opened.
    """

    def __init__(self, domain: TextDomain, tokenizer: "PreTrainedTokenizerBase", *, max_seq_len: int):
        self.domain, self.tokenizer, self.max_seq_len = domain, tokenizer, max_seq_len
        self.rows = open_rows(domain)
        self.go_to(Position(0, deepcopy(self.rows.state_dict()), 0))

    def position(self) -> Position:
        """Where the next sequence begins."""
        if not self.chunks:
            return Position(self.next_chunk, self.state, self.offset)
        return Position(*self.chunks[0][:2], self.offset)

    def go_to(self, position: Position) -> None:
        """Continue from a position in this text."""
        self.next_chunk, self.offset = position.chunk, position.offset
        self.state = position.rows  # of `datasets`, before the next chunk
        self.rows.load_state_dict(deepcopy(position.rows))
        self.iterator = iter(self.rows)
        self.chunks: deque[tuple[int, dict[str, Any], np.ndarray]] = deque()
        self.has_ended = False

    def take(self, count: int) -> list[list[int]]:
        """The next sequences; fewer than `count` only where the text ends.

        Raises:
            UserError: If a row cannot be read or has no text.
        """
        return self.take_array(count).tolist()

    def take_array(self, count: int) -> np.ndarray:
        """The same as ids_NT."""
        while not self.has_ended and self._num_tokens() < count * self.max_seq_len:
            self._read_chunk()
        count = min(count, self._num_tokens() // self.max_seq_len)
        tokens = count * self.max_seq_len
        parts: list[np.ndarray] = [np.empty(0, IDS)]
        while tokens:
            ids = self.chunks[0][2][self.offset : self.offset + tokens]
            parts.append(ids)
            tokens, self.offset = tokens - len(ids), self.offset + len(ids)
            if self.offset == len(self.chunks[0][2]):
                self.chunks.popleft()
                self.offset = 0
        return np.concatenate(parts).reshape(count, self.max_seq_len)

    def _num_tokens(self) -> int:
        return sum(len(ids) for _, _, ids in self.chunks) - self.offset

    def _read_chunk(self) -> None:
        try:
            rows = list(islice(self.iterator, ROWS_PER_CHUNK))
        except read_errors() as error:
            raise unreadable(self.domain, error) from error
        if not rows:
            self.has_ended = True
            return
        ids = np.array(self._tokenize(rows, first_row=self.next_chunk * ROWS_PER_CHUNK + 1), IDS)
        if len(ids):
            self.chunks.append((self.next_chunk, self.state, ids))
        self.next_chunk, self.state = self.next_chunk + 1, deepcopy(self.rows.state_dict())

    def _tokenize(self, rows: Sequence[Mapping[str, Any]], *, first_row: int) -> list[int]:
        """The tokens of a chunk of rows.

        Raises:
            UserError: If a row holds no text in the domain's field.
        """
        path = self.domain.path
        if path is not None and is_plain_text(path):
            text = "".join(f"{row['text']}\n" for row in rows)
            return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        texts = []
        for number, row in enumerate(rows, start=first_row):
            if path is not None:  # lines of JSON: pyarrow's JSON reader ends the process at deep nesting
                if not row["text"].strip():
                    continue
                row = parse_json(row["text"], f"{path}:{number}", "Write one JSON object per line.")  # noqa: PLW2901
                require_object(row, f"{path}:{number}", example=f'{{"{self.domain.field}": "Some text."}}')
            text = row.get(self.domain.field)
            if not isinstance(text, str):
                raise UserError(
                    f"{text_source(self.domain)}: row {number} has no text in field {self.domain.field!r}, but the "
                    f"fields {', '.join(row)}. Set field of text.domains {self.domain.name} to the one with the text."
                )
            texts.append(text)
        texts = [text for text in texts if text]
        documents = self.tokenizer(texts, verbose=False)["input_ids"] if texts else []
        end = cast("int", self.tokenizer.eos_token_id)
        return [token for ids in documents for token in (*ids, *([end] if ids[-1:] != [end] else []))]


class DomainStream:
    """The training sequences of one domain without end: blocks of the text, each in random order, again and again.

    The block after the current one is read meanwhile.

    Args:
        text: Standing at the first sequence that may be trained on; there is one.
        seed: Of the order; each pass over the text adds 1.
        block_size: Sequences read and put in order together.
    """

    def __init__(self, text: PackedText, *, seed: int, block_size: int):
        self.text, self.seed, self.block_size = text, seed, block_size
        self.start = text.position()
        self.epoch = self.block_number = 0
        self.ahead = READER.submit(self._read_block)
        self._next_block()

    def next_sequence(self) -> list[int]:
        """The next sequence, max_seq_len token ids."""
        if self.offset == len(self.block_NT):
            self.block_number += 1
            self._next_block()
        sequence_T = self.block_NT[self.order[self.offset]]
        self.offset += 1
        return sequence_T.tolist()

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands, as plain values."""
        return {
            "epoch": self.epoch,
            "block_number": self.block_number,
            "offset": self.offset,
            "position": vars(self.block_start),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a stream of the same text stood."""
        self.ahead.result()
        self.epoch, self.block_number = state["epoch"], state["block_number"]
        self.text.go_to(Position(**state["position"]))
        self.ahead = READER.submit(self._read_block)
        self._next_block()
        self.offset = state["offset"]

    def _read_block(self) -> tuple[Position, np.ndarray]:
        """The next block of the text, from its start again where it has ended; and where the block begins."""
        begin, block_NT = self.text.position(), self.text.take_array(self.block_size)
        if len(block_NT):
            return begin, block_NT
        self.text.go_to(self.start)
        return self.start, self.text.take_array(self.block_size)

    def _next_block(self) -> None:
        begin, self.block_NT = self.ahead.result()
        if begin == self.start and self.block_number:
            self.epoch, self.block_number = self.epoch + 1, 0
        self.block_start, self.offset = begin, 0
        self.order = np.random.default_rng([self.seed + self.epoch, self.block_number]).permutation(len(self.block_NT))
        self.ahead = READER.submit(self._read_block)


def open_rows(domain: TextDomain) -> "IterableDataset":
    """The rows of a domain, streamed; of a file its lines.

    Raises:
        UserError: If its text cannot be opened.
    """
    from datasets import load_dataset

    try:
        if domain.path is None:
            rows = load_dataset(cast("str", domain.dataset), domain.config, split=domain.split, streaming=True)
        else:
            require_regular(Path(domain.path), remedy=f"Mend or replace the path of text.domains {domain.name}.")
            Path(domain.path).open("rb").close()  # `datasets` does not say why a file cannot be read
            rows = load_dataset("text", data_files=domain.path, split="train", streaming=True)
    except read_errors() as error:
        raise unreadable(domain, error) from error
    return cast("IterableDataset", rows)


def read_errors() -> tuple[type[Exception], ...]:
    """What `datasets` raises where text is missing or is not what it should be."""
    from datasets.exceptions import DatasetsError

    # StopIteration where a file has no rows; the last two of damaged gzip
    return (DatasetsError, OSError, ValueError, RuntimeError, StopIteration, EOFError, zlib.error)


def unreadable(domain: TextDomain, error: Exception) -> UserError:
    """The error as a message that names the domain."""
    if isinstance(error, UserError):
        return error
    reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or "it holds no rows"
    where = looked_for(Path(domain.path)) if domain.path and isinstance(error, FileNotFoundError) else ""
    return UserError(
        f"{text_source(domain)}: text.domains {domain.name} cannot be read ({reason}).{where} Mend or replace it."
    )


def text_source(domain: TextDomain) -> str:
    """Where a domain's text is."""
    if domain.path is not None:
        return domain.path
    return f"dataset {domain.dataset}" + (f", config {domain.config}" if domain.config else "") + f", {domain.split}"


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
        UserError: If a text cannot be opened, or the tokenizer has no end token to end documents with.
    """
    if tokenizer.eos_token_id is None:
        raise UserError(
            f"{tokenizer.name_or_path}: the tokenizer has no end-of-sequence token, which ends every document. "
            "Set its eos_token."
        )
    return {domain.name: PackedText(domain, tokenizer, max_seq_len=config.max_seq_len) for domain in config.domains}
