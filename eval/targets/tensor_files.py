"""Tensors of safetensors files by plain reads, which take the memory of a tensor and no more.

safetensors maps a whole file, and a process whose memory is capped may not map one that is larger than its cap.

Shape suffixes used in this file:
    R = rows wanted, C = columns of a matrix
"""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from architectures.checkpoints.weights import Weights

LENGTH_BYTES = 8  # of the header's length, with which a file begins


@cache
def starts_of(file: Path, _changed_ns: int) -> dict[str, int]:
    """Where the bytes of each tensor begin. The file is one that architectures.checkpoints.weights has looked at."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
        header = json.loads(stream.read(length))
    begin = LENGTH_BYTES + length
    return {name: begin + entry["data_offsets"][0] for name, entry in header.items() if name != "__metadata__"}


def start_of(weights: Weights, name: str) -> int:
    file = weights.files[name]
    return starts_of(file, file.stat().st_mtime_ns)[name.removeprefix(weights.left_out)]


def read_tensor(weights: Weights, name: str) -> Tensor:
    """One tensor, as the file has it."""
    info = weights.info[name]
    tensor = torch.empty(info.size, dtype=info.dtype)
    with weights.files[name].open("rb") as stream:
        stream.seek(start_of(weights, name))
        stream.readinto(tensor.flatten().view(torch.uint8).numpy().data)
    return tensor


def read_rows(weights: Weights, name: str, rows: Sequence[int]) -> Tensor:
    """rows_RC of a matrix, as the file has them; ascending rows are read fastest."""
    info = weights.info[name]
    rows_RC = torch.empty((len(rows), info.size[1]), dtype=info.dtype)
    num_bytes, start = info.size[1] * info.dtype.itemsize, start_of(weights, name)
    bytes_R = rows_RC.view(torch.uint8).numpy()
    with weights.files[name].open("rb") as stream:
        for place, row in enumerate(rows):
            stream.seek(start + row * num_bytes)
            stream.readinto(bytes_R[place].data)
    return rows_RC
