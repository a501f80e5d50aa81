"""The hidden states of a shard's answers, in a file beside it.

    train-00000.jsonl                 the answers
    train-00000.hidden.safetensors    of each of them, under its id, hidden_AH: the states its tokens were chosen from

The file is written answer by answer as they end, whole or not at all, and before the answers themselves: where those
are, it is. It says by a checksum which answers it belongs to.

Shape suffixes used in this file:
    A = tokens of an answer, one row each; H = width of the last hidden state
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from architectures.errors import UserError
from architectures.files.atomic import replacing
from architectures.settings.recipe_command import command_of
from eval.answers.shards import hidden_path

FORMAT = "widedraft.hidden_states/1"
NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}  # as safetensors calls them
LENGTH_BYTES = 8  # of the number that begins a safetensors file: how long its header is
METADATA_BYTES, ENTRY_BYTES = 256, 128  # of a header at most, and of each answer in it


def again() -> str:
    """What brings the states of a shard back."""
    return (
        f"{command_of('generate')} answers its shard again; or set distill.teacher.captured_while to reading, and the "
        "target reads the answers once more."
    )


class HiddenFile:
    """A file in the making. Its header, which says where everything is, comes last into the bytes reserved for it.

    Args:
        file: New, and empty.
        most_answers: How many there can be.
    """

    def __init__(self, file: BinaryIO, *, most_answers: int) -> None:
        self.file = file
        self.header_bytes = METADATA_BYTES + ENTRY_BYTES * most_answers
        self.entries: dict[str, Any] = {}
        self.num_bytes = 0
        file.write(bytes(LENGTH_BYTES + self.header_bytes))

    def add(self, answer: int, hidden_AH: Tensor) -> None:
        """Write the states of one answer."""
        content = hidden_AH.contiguous().view(torch.uint8).numpy().tobytes()
        start, self.num_bytes = self.num_bytes, self.num_bytes + len(content)
        self.entries[str(answer)] = {
            "dtype": NAMES[hidden_AH.dtype],
            "shape": list(hidden_AH.shape),
            "data_offsets": [start, self.num_bytes],
        }
        self.file.write(content)

    def finish(self, answers: bytes) -> None:
        """Write the header, given the shard as it will be written."""
        metadata = {"format": FORMAT, "answers": sha256(answers).hexdigest()}
        header = json.dumps({"__metadata__": metadata, **self.entries}, separators=(",", ":")).encode()
        assert len(header) <= self.header_bytes, f"a header of {len(header)} bytes in the reserved {self.header_bytes}"
        self.file.seek(0)
        self.file.write(self.header_bytes.to_bytes(LENGTH_BYTES, "little") + header.ljust(self.header_bytes))


@contextmanager
def new_hidden_file(shard: Path, *, most_answers: int) -> Iterator[HiddenFile]:
    """The file of a shard, there once the block has ended well; nothing is where it has not."""
    with replacing(hidden_path(shard)) as file:
        yield HiddenFile(file, most_answers=most_answers)


def require_states(shard: Path, lengths: Mapping[int, int], *, width: int, dtype: str) -> None:
    """Refuse a file that does not hold the states of a shard's answers; reads no state.

    Args:
        shard: With answers.
        lengths: Tokens of each of them, by id.
        width: Of a state.
        dtype: Of the numbers, by name.

    Raises:
        UserError: If it is missing, damaged, of other answers or of another model.
    """
    file, kind = hidden_path(shard), NAMES[getattr(torch, dtype)]
    with open_states(file) as states:
        metadata = states.metadata() or {}
        if metadata.get("format") != FORMAT:
            format_ = metadata.get("format")
            raise UserError(f"{file}: its format is {format_!r}, this version reads {FORMAT!r}. Delete it: {again()}")
        if metadata.get("answers") != sha256(shard.read_bytes()).hexdigest():
            raise UserError(f"{file}: belongs to other answers than those in {shard.name}. Delete both: {again()}")
        for answer, length in lengths.items():
            kept = states.get_slice(str(answer))
            if (kept.get_dtype(), kept.get_shape()) != (kind, [length, width]):
                raise UserError(
                    f"{file}: holds {kept.get_dtype()} {kept.get_shape()} of answer {answer}, where {kind} "
                    f"{[length, width]} belongs. Delete it: {again()}"
                )


def read_states(shard: Path, answer: int, count: int) -> Tensor:
    """hidden_AH of the first tokens of an answer.

    Raises:
        UserError: If the file is gone or damaged, or holds something that is no number.
    """
    with open_states(hidden_path(shard)) as states:
        hidden_AH = states.get_slice(str(answer))[:count]
    if not is_finite(hidden_AH):
        raise UserError(
            f"{hidden_path(shard)}: the states of answer {answer} are not all numbers. Delete it: {again()}"
        )
    return hidden_AH


def is_finite(hidden_AH: Tensor) -> bool:
    """Whether states are numbers, and none is beyond all bounds."""
    return bool(hidden_AH.isfinite().all())


@contextmanager
def open_states(file: Path) -> Iterator[Any]:
    """A file of hidden states, mapped into memory for as long as the block lasts."""
    if not file.is_file():
        raise UserError(f"{file}: not there. {again()}")
    try:
        with safe_open(file, framework="pt") as states:
            yield states
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file}: damaged ({error}). Delete it: {again()}") from error
