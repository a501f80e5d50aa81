"""Sequences of a training batch: where an answer of each may be written anew, and the batch with what came of it.

Shape suffixes used in this file:
    B = sequences in the batch, T = tokens of the longest sequence in it
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from distill.data.batches import Example


@dataclass(frozen=True)
class Place:
    """A sequence, and the answer in it that may be written anew.

    Attributes:
        example: The sequence.
        turn: Which of its answers: of a conversation with several any is as likely as another.
        row_seed: Of everything that is drawn while it is written.
        coin: In [0, 1): the student writes it where the probability of a sequence is above.
    """

    example: Example
    turn: int
    row_seed: int
    coin: float

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """Everything before the answer."""
        return self.example.input_ids[: self.example.spans[self.turn][0] + 1]

    def with_answer(self, token_ids: Sequence[int]) -> Example:
        """The sequence with another answer at this place, and nothing behind it: that followed another one."""
        *input_ids, last_id = (*self.prompt_ids, *token_ids)
        span = (len(self.prompt_ids) - 1, len(input_ids))
        return Example(tuple(input_ids), last_id, (*self.example.spans[: self.turn], span), task=self.example.task)


def places_in(batch: Mapping[str, Tensor], *, seed: int, batch_number: int) -> list[Place]:
    """The place of each sequence; what is drawn depends on the seed, the batch's number and the sequence alone.

    Args:
        batch: As distill.data.batches.collate makes it.
        seed: Of the training.
        batch_number: Batches trained before this one.
    """
    return [drawn(example, seed=seed, batch_number=batch_number) for example in examples_of(batch)]


def drawn(example: Example, *, seed: int, batch_number: int) -> Place:
    """The place of one sequence."""
    ids = np.array([*example.input_ids, example.last_id], dtype=np.int64)
    generator = np.random.default_rng([seed, batch_number, zlib.crc32(ids.tobytes())])
    row_seed = int(generator.integers(2**63))
    return Place(example, int(generator.integers(len(example.spans))), row_seed, float(generator.random()))


def examples_of(batch: Mapping[str, Tensor]) -> list[Example]:
    """The sequences that a batch was made of."""
    columns = (batch[name].tolist() for name in ("input_ids", "next_ids", "keep", "task"))
    lengths = batch["attention_mask"].sum(dim=1).tolist()
    return [
        Example(tuple(ids[:length]), following[length - 1], spans_of(kept[:length]), task=task)
        for length, ids, following, kept, [task] in zip(lengths, *columns, strict=True)
    ]


def spans_of(kept: Sequence[bool]) -> tuple[tuple[int, int], ...]:
    """(first, end) of every run of positions that are kept."""
    edges = np.flatnonzero(np.diff([False, *kept, False])).tolist()
    return tuple(zip(edges[::2], edges[1::2], strict=True))
