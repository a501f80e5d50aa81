"""Sharded checkpoints: a folder each, whose tensors lie in one file of each process that wrote it.

`.metadata` says where each tensor is and is written last; `state.pt` holds everything that is no tensor of the model or
of the optimiser. A shard is a row of torch's own zip archives, one for each piece of a tensor, with a CRC-32 of every
entry. A folder gets its name when all of it is there.
"""

import io
import os
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from architectures.errors import UserError
from distill.checkpoints.archives import zip_damage
from distill.checkpoints.metadata import METADATA_NAME, UnreadableMetadata, read_metadata

STATE_NAME = "state.pt"
# What torch warns of, also in its thread: that there is one process, and of a call of its own.
OF_NO_CONCERN = "torch.distributed is (disabled|unavailable)|TypedStorage is deprecated"
MODEL, OPTIMISER = "model", "optimizers"  # the first part of a tensor's name


class Window(io.RawIOBase):
    """Part of a file as a file of its own."""

    def __init__(self, path: Path, start: int, length: int):
        self.file = path.open("rb")
        self.start, self.length, self.position = start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place within the part."""
        self.position = max(0, {os.SEEK_SET: 0, os.SEEK_CUR: self.position, os.SEEK_END: self.length}[whence] + offset)
        return self.position

    def tell(self) -> int:
        return self.position

    def readinto(self, buffer: Any) -> int:
        """Read up to the end of the part."""
        self.file.seek(self.start + self.position)
        content = self.file.read(max(0, min(len(buffer), self.length - self.position)))
        buffer[: len(content)] = content
        self.position += len(content)
        return len(content)

    def close(self) -> None:
        self.file.close()
        super().close()


def folder_damage(folder: Path) -> str | None:
    """What is wrong with a sharded checkpoint, in a few words that name the file; None when every byte is as written.

    Raises:
        UserError: If its metadata names code.
    """
    for name in (METADATA_NAME, STATE_NAME):
        if not (folder / name).is_file():
            return f"its {name} is missing; copy it back, or delete the folder"
    try:
        metadata = read_metadata(folder)
    except UnreadableMetadata as problem:
        return str(problem)
    return missing_shard(folder, metadata) or state_damage(folder) or wrong_byte(folder, metadata)


def state_damage(folder: Path) -> str | None:
    """The same of what is no shard."""
    path = folder / STATE_NAME
    with path.open("rb") as file:
        problem = zip_damage(file, path.stat().st_size)
    return None if problem is None else f"its {STATE_NAME}: {problem}"


def missing_shard(folder: Path, metadata: Metadata) -> str | None:
    """The first shard that is not there, or shorter than what lies in it."""
    sizes: dict[str, int] = defaultdict(int)
    for place in metadata.storage_data.values():
        sizes[place.relative_path] = max(sizes[place.relative_path], place.offset + place.length)
    for name, size in sorted(sizes.items()):
        path = folder / name
        if not path.is_file():
            return f"its shard {name} is missing; copy it back, or delete the folder"
        if path.stat().st_size < size:
            return f"its shard {name} has {path.stat().st_size} of {size} bytes; copy it again, or delete the folder"
    return None


def wrong_byte(folder: Path, metadata: Metadata) -> str | None:
    """The first piece of a tensor whose bytes are not those that were written."""
    for index, place in metadata.storage_data.items():
        with io.BufferedReader(Window(folder / place.relative_path, place.offset, place.length)) as piece:
            problem = zip_damage(piece, place.length)
        if problem is not None:
            return f"{index.fqn} in its shard {place.relative_path}: {problem}"
    return None


class CheckedReader(FileSystemReader):
    """Torch's reader, whose metadata was read by the list of classes."""

    def read_metadata(self, *args: Any, **rest: Any) -> Metadata:  # noqa: ARG002  # later versions of torch name a rank
        """See StorageReader."""
        metadata = read_metadata(Path(self.path))
        assert metadata.storage_meta is not None  # since torch 2.3
        metadata.storage_meta.load_id = self.load_id
        return metadata


def read_tensors(folder: Path, part: str) -> dict[str, Tensor]:
    """All tensors of one part, whole, by their names within it.

    Raises:
        UserError: If the folder is no checkpoint of a training.
    """
    try:
        described = read_metadata(folder).state_dict_metadata
    except (UnreadableMetadata, OSError) as problem:
        raise UserError(f"{folder}: is no checkpoint of a training ({problem}). Delete it.") from problem
    tensors = {
        name.removeprefix(f"{part}."): torch.empty(said.size, dtype=said.properties.dtype)
        for name, said in described.items()
        if name.startswith(f"{part}.") and isinstance(said, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=OF_NO_CONCERN)
        load({part: tensors}, storage_reader=CheckedReader(folder), no_dist=True)
    return tensors
