"""Tensors of safetensors files by plain reads, which take the memory of a tensor and no more.

safetensors maps a whole file, and a process whose memory is capped may not map one that is larger than its cap.

Shape suffixes used in this file:
    R = rows wanted, C = columns of a matrix
"""

import json
from collections.abc import Sequence
from functools import cache
from math import prod
from mmap import mmap
from pathlib import Path

import torch
from torch import Tensor

LENGTH_BYTES = 8  # of the header's length, with which a file begins


@cache
def starts_of(file: Path, _changed_ns: int) -> dict[str, int]:
    """Where the bytes of each tensor begin. The file is one that architectures.checkpoints.weights has looked at."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
        header = json.loads(stream.read(length))
    begin = LENGTH_BYTES + length
    return {name: begin + entry["data_offsets"][0] for name, entry in header.items() if name != "__metadata__"}


def start_of(file: Path, name: str) -> int:
    return starts_of(file, file.stat().st_mtime_ns)[name]


def read_tensor(file: Path, name: str, *, dtype: torch.dtype, size: tuple[int, ...]) -> Tensor:
    """One tensor, as the file has it."""
    bytes_N = empty_bytes(prod(size) * dtype.itemsize)
    with file.open("rb") as stream:
        stream.seek(start_of(file, name))
        stream.readinto(bytes_N.numpy().data)
    return bytes_N.view(dtype).view(size)


def empty_bytes(count: int) -> Tensor:
    """bytes_N in memory that goes back to the system with them; of tensors that are freed the C library keeps some."""
    return torch.frombuffer(mmap(-1, count), dtype=torch.uint8) if count else torch.empty(0, dtype=torch.uint8)


def read_rows(file: Path, name: str, rows: Sequence[int], *, dtype: torch.dtype, columns: int) -> Tensor:
    """rows_RC of a matrix, as the file has them; ascending rows are read fastest."""
    rows_RC = torch.empty((len(rows), columns), dtype=dtype)
    num_bytes, start = columns * dtype.itemsize, start_of(file, name)
    bytes_R = rows_RC.view(torch.uint8).numpy()
    with file.open("rb") as stream:
        for place, row in enumerate(rows):
            stream.seek(start + row * num_bytes)
            stream.readinto(bytes_R[place].data)
    return rows_RC
