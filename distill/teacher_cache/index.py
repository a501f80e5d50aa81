"""Which rows of which file belong to which answer: planned before anything is written, read without a scan."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from architectures.files.atomic import write_bytes
from distill.teacher_cache.record import FileRecord
from distill.teacher_cache.shard_sizes import MAX_SHARD_BYTES, MAX_SHARD_TOKENS, shard_tokens

if TYPE_CHECKING:
    from distill.data.batches import Example


@dataclass(frozen=True)
class Shard:
    """A file with the rows of consecutive answers."""

    file: str
    answers: range


@dataclass(frozen=True)
class Index:
    """Where each answer's rows are.

    Attributes:
        first_rows: Of each answer, counted over all shards; one more entry for the end.
        first_answers: Of each shard; one more entry for the end.
    """

    first_rows: list[int]
    first_answers: list[int]

    def __len__(self) -> int:
        return len(self.first_rows) - 1

    def locate(self, answer: int) -> tuple[int, slice]:
        """The number of the shard that holds an answer, and its rows there."""
        shard = bisect_right(self.first_answers, answer) - 1
        offset = self.first_rows[self.first_answers[shard]]
        return shard, slice(self.first_rows[answer] - offset, self.first_rows[answer + 1] - offset)


def cut_into_shards(name: str, num_kept: Sequence[int], *, token_bytes: int) -> list[Shard]:
    """Answers in order, each shard filled until the next answer would make it too large.

    Args:
        name: Of the split; first part of the file names.
        num_kept: Answer tokens of each answer.
        token_bytes: Bytes of one row.
    """
    capacity = shard_tokens(token_bytes, most_tokens=MAX_SHARD_TOKENS, most_bytes=MAX_SHARD_BYTES)
    starts, filled = [0], 0
    for answer, tokens in enumerate(num_kept):
        if filled and filled + tokens > capacity:
            starts.append(answer)
            filled = 0
        filled += tokens
    ends = [*starts[1:], len(num_kept)]
    return [
        Shard(shard_file(name, number), range(start, end))
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def shard_file(name: str, number: int) -> str:
    """The file name of one shard of a split."""
    return f"{name}-{number:05d}.safetensors"


def index_file(name: str) -> str:
    """The file name of a split's index."""
    return f"{name}-index.safetensors"


def write_index(folder: Path, name: str, num_kept: Sequence[int], shards: Sequence[Shard]) -> FileRecord:
    """Write where the rows of a split's answers are."""
    first_rows = list(accumulate(num_kept, initial=0))
    first_answers = [*(shard.answers.start for shard in shards), len(num_kept)]
    tensors = {"first_rows": torch.tensor(first_rows), "first_answers": torch.tensor(first_answers)}
    return write_tensors(tensors, folder / index_file(name))


def load_index(folder: Path, name: str) -> Index:
    """Read an index; its size has been checked."""
    tensors = load_file(folder / index_file(name))
    return Index(tensors["first_rows"].tolist(), tensors["first_answers"].tolist())


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> FileRecord:
    """Write a safetensors file, whole or not at all."""
    content = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    write_bytes(content, path)
    return FileRecord(len(content), sha256(content).hexdigest())


def fingerprint_examples(examples: Sequence["Example"]) -> str:
    """sha256 of the token ids and the answers' spans in every example: rows fit these examples and no others."""
    digest = sha256()
    for example in examples:
        bounds = [bound for span in example.spans for bound in span]
        counts = [len(example.input_ids), len(example.spans)]
        digest.update(np.array([*counts, *bounds, *example.input_ids], dtype="<i4").tobytes())
    return digest.hexdigest()
