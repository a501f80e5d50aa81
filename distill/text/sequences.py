"""Text of one domain as packed sequences of token ids, streamed, from any position that was reached before.

A file of plain text is one document. Each row of JSON lines or of a `datasets` split is a document, framed by the
tokenizer's own special tokens and followed by its end-of-sequence token. Documents follow each other without a gap, in
the order of the pieces of the text, and are cut every max_seq_len tokens; what is left at the end of the text is too
short and not used. Processes read other pieces each, and all have the same sequences.

Shape suffixes used in this file:
    N = sequences, T = tokens per sequence
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from architectures.errors import UserError
from distill.recipe.sections.text import TextConfig, TextDomain, is_plain_text
from distill.text.pieces import LaneState, open_pieces, text_source
from distill.text.sharing import Share

if TYPE_CHECKING:
    from concurrent.futures import Future

    from transformers import PreTrainedTokenizerBase

IDS = np.int32


@dataclass(frozen=True)
class TextPosition:
    """How far the text was used: the piece, its tokens that are in a sequence already, and how far lanes were read."""

    piece: int
    offset: int
    lanes: tuple[LaneState, ...]


@dataclass(frozen=True)
class Piece:
    """What one process makes of a piece for all.

    Attributes:
        number: Of the piece.
        ids: Its tokens; None where its lane has ended.
        state: How far its lane was read then; None where there are no lanes.
        problem: Why it could not be read.
    """

    number: int
    ids: Any = None
    state: LaneState | None = None
    problem: str | None = None


class PackedText:
    """The sequences of one domain in the order of its text.

    Args:
        domain: Where the text is.
        max_seq_len: Tokens of every sequence.
        share: Of the processes that read it together, which all take the same from it.

    Raises:
        UserError: If the text cannot be opened.
    """

    def __init__(
        self, domain: TextDomain, tokenizer: "PreTrainedTokenizerBase", *, max_seq_len: int, share: Share | None = None
    ):
        self.domain = domain
        self.tokenizer = tokenizer
        self.max_seq_len = max_seq_len
        self.share = share or Share()
        self.pieces = open_pieces(domain)
        self.go_now(TextPosition(0, 0, tuple(self.pieces.states())))

    def position(self) -> TextPosition:
        """Where the next sequence begins."""
        return TextPosition(self.read[0].number if self.read else self.next_piece, self.offset, tuple(self.lanes))

    def go_to(self, position: TextPosition) -> None:
        """Continue from a position in this text."""
        self.share.ahead(self.go_now, position).result()

    def take(self, count: int) -> list[list[int]]:
        """The next sequences; fewer than `count` only where the text ends.

        Raises:
            UserError: If a row cannot be read or has no text.
        """
        return self.take_ahead(count).result().tolist()

    def take_ahead(self, count: int) -> "Future[np.ndarray]":
        """The same as ids_NT, begun now; nothing else is to be asked until it is there."""
        return self.share.ahead(self.take_now, count)

    def go_now(self, position: TextPosition) -> None:
        self.next_piece, self.offset = position.piece, position.offset
        self.lanes = list(position.lanes)
        self.read: deque[Piece] = deque()
        self.ended: set[int] = set()
        self.pieces.go_to(position.piece, position.lanes)

    def take_now(self, count: int) -> np.ndarray:
        length = self.max_seq_len
        while self._num_read() < count * length and len(self.ended) < max(1, self.pieces.lanes):
            self._read_round()
        count = min(count, self._num_read() // length)
        return self._use(count * length).reshape(count, length)

    def _num_read(self) -> int:
        return sum(len(piece.ids) for piece in self.read) - (self.offset if self.read else 0)

    def _use(self, tokens: int) -> np.ndarray:
        """The next tokens, of which there are so many; pieces that are used up are let go."""
        parts = [np.empty(0, IDS)]
        while self.read and (tokens > 0 or self.offset == len(self.read[0].ids)):
            ids = self.read[0].ids[self.offset : self.offset + tokens]
            parts.append(ids)
            tokens, self.offset = tokens - len(ids), self.offset + len(ids)
            if self.offset == len(self.read[0].ids):
                piece, self.offset = self.read.popleft(), 0
                if piece.state is not None:
                    self.lanes[piece.number % self.pieces.lanes] = piece.state
        return np.concatenate(parts)

    def _read_round(self) -> None:
        """As many pieces as there are processes, each read by its own."""
        numbers = range(self.next_piece, self.next_piece + self.share.size)
        own = [self._piece(number) for number in numbers if self.share.reads(number, self.pieces.lanes)]
        pieces = sorted((piece for each in self.share.exchange(own) for piece in each), key=lambda piece: piece.number)
        for piece in pieces:
            if piece.problem is not None:
                raise UserError(piece.problem)
            if piece.ids is None:
                self.ended.add(piece.number % max(1, self.pieces.lanes))
            else:
                self.read.append(piece)
        self.next_piece = numbers.stop

    def _piece(self, number: int) -> Piece:
        """A piece that is this process's to read; a problem is told to all of them."""
        try:
            texts = self.pieces.read(number)
        except UserError as error:
            return Piece(number, problem=str(error))
        lanes = self.pieces.lanes
        state = self.pieces.states()[number % lanes] if lanes else None
        return Piece(number, None if texts is None else np.array(self._token_ids(texts), IDS), state)

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

    The block after the current one is read meanwhile.

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
        self.ahead = self._begin_block()
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
        position = self.block_start
        return {
            "epoch": self.epoch,
            "block_number": self.block_number,
            "offset": self.offset,
            "piece": position.piece,
            "piece_offset": position.offset,
            "lanes": list(position.lanes),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a stream of the same text stood."""
        self.ahead.result()
        self.epoch, self.block_number = state["epoch"], state["block_number"]
        self.text.go_to(TextPosition(state["piece"], state["piece_offset"], tuple(state["lanes"])))
        self.ahead = self._begin_block()
        self._next_block()
        self.offset = state["offset"]

    def _begin_block(self) -> "Future[tuple[TextPosition, np.ndarray]]":
        """The next block of the text, from its start again where it has ended; and where the block begins."""
        return self.text.share.ahead(self._read_block)

    def _read_block(self) -> tuple[TextPosition, np.ndarray]:
        begin, block_NT = self.text.position(), self.text.take_now(self.block_size)
        if len(block_NT):
            return begin, block_NT
        self.text.go_now(self.start)
        return self.start, self.text.take_now(self.block_size)

    def _next_block(self) -> None:
        begin, self.block_NT = self.ahead.result()
        if begin == self.start and self.block_number:
            self.epoch, self.block_number = self.epoch + 1, 0
        self.block_start, self.offset = begin, 0
        self.order = np.random.default_rng([self.seed + self.epoch, self.block_number]).permutation(len(self.block_NT))
        self.ahead = self._begin_block()


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


def open_texts(
    config: TextConfig, tokenizer: "PreTrainedTokenizerBase", share: Share | None = None
) -> dict[str, PackedText]:
    """The text of every domain, by its name, read together with the other processes of a share.

    Raises:
        UserError: If a text cannot be opened, or rows cannot be told apart because the tokenizer has no end token.
    """
    if tokenizer.eos_token_id is None:
        raise UserError(
            f"{tokenizer.name_or_path}: the tokenizer has no end-of-sequence token, which ends every document. "
            "Set its eos_token."
        )
    share = share or Share()
    return {
        domain.name: PackedText(domain, tokenizer, max_seq_len=config.max_seq_len, share=share)
        for domain in config.domains
    }
