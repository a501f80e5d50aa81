"""Integrity of checkpoints, and reading of sharded ones: a directory each, with the tensors in one file per process.

`.metadata` has the location of each tensor and is written last; `state.pt` has everything but the tensors of model and
optimiser. A shard is a sequence of torch's zip archives, one for each piece of a tensor, with a CRC-32 of every entry.
A directory gets its final name when it is complete.

`.metadata` is a pickle, here read with an allowlist of classes. Torch's own reader unpickles it without one, and also
any non-tensor contents of the checkpoint, so those are rejected (torch.distributed.checkpoint, torch 2.7 to 2.11).
"""

import io
import pathlib
import pickle
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.serialization import _get_layout

from architectures.errors import UserError
from distill.checkpoints.checkpoint_files import (
    BEST_NAME,
    UNREADABLE,
    are_trusted,
    code_found,
    find_checkpoints,
    zip_damage,
)

METADATA_NAME = ".metadata"
SHARD_PATTERN = re.compile(r"__\d+_\d+\.distcp")

OF_METADATA = (
    Metadata,
    TensorStorageMetadata,
    BytesStorageMetadata,
    TensorProperties,
    ChunkStorageMetadata,
    MetadataIndex,
    StorageMeta,
    _MEM_FORMAT_ENCODING,
)
ALLOWED: dict[tuple[str, str], Any] = {
    **{(metadata.__name__, each.__name__): each for each in OF_METADATA},
    (filesystem.__name__, "_StorageInfo"): _StorageInfo,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): _get_layout,
    ("pathlib", "PosixPath"): pathlib.PosixPath,  # location of the checkpoint
    ("pathlib._local", "PosixPath"): pathlib.PosixPath,  # its name in Python 3.13
}
STATE_NAME = "state.pt"
# torch's warnings, also from its thread: about a single process, and about a call of its own.
OF_NO_CONCERN = "torch.distributed is (disabled|unavailable)|TypedStorage is deprecated"
MODEL, OPTIMISER = "model", "optimizers"  # first part of a tensor's name


def newest_intact_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint to resume from, or None; reports damaged ones on stderr."""
    for path in reversed(find_checkpoints(folder)):
        problem = damage(path)
        if problem is None:
            return path
        print(f"{path}: truncated or damaged ({problem}); trying the previous one.", file=sys.stderr)
    return None


def chosen_checkpoint(folder: Path, which: Literal["best", "latest"]) -> Path | None:
    """Return the checkpoint to export; "best" falls back to the newest intact one without a usable best link."""
    link = folder / BEST_NAME
    if which == "best" and link.is_symlink():
        path = folder / link.readlink().name
        problem = damage(path) if path.exists() else "it no longer exists"
        if problem is None:
            return path
        print(f"{path}: the best checkpoint cannot be used ({problem}).", file=sys.stderr)
    return newest_intact_checkpoint(folder)


def damage(path: Path) -> str | None:
    """Describe the damage of a checkpoint in a few words; None if every byte is intact.

    Raises:
        UserError: If it is a directory whose metadata references code.
    """
    return folder_damage(path) if path.is_dir() else file_damage(path)


def folder_damage(path: Path) -> str | None:
    for name in (METADATA_NAME, STATE_NAME):
        if not (path / name).is_file():
            return f"its {name} is missing; copy it back, or delete the directory"
    try:
        metadata = read_metadata(path)
    except UnreadableMetadata as problem:
        return str(problem)
    if (problem := missing_shard(path, metadata)) is not None:
        return problem
    if (problem := file_damage(path / STATE_NAME)) is not None:
        return f"its {STATE_NAME}: {problem}"
    # First piece of a tensor that is damaged.
    for index, place in metadata.storage_data.items():
        with (path / place.relative_path).open("rb") as file:
            file.seek(place.offset)
            problem = zip_damage(io.BytesIO(file.read(place.length)), place.length)
        if problem is not None:
            return f"{index.fqn} in its shard {place.relative_path}: {problem}"
    return None


def file_damage(path: Path) -> str | None:
    with path.open("rb") as file:
        return zip_damage(file, path.stat().st_size)


class UnreadableMetadata(Exception):  # noqa: N818  # not a bug, but a damaged file
    """Bytes that are no metadata; the message gives the reason in a few words."""


class AllowedOnly(pickle.Unpickler):
    """Unpickler restricted to dtypes and the classes of ALLOWED; rejects any other before it is imported."""

    def __init__(self, content: bytes, path: Path):
        super().__init__(io.BytesIO(content))
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in ALLOWED:
            return ALLOWED[module, name]
        number_type = getattr(torch, name, None) if module == "torch" else None
        if isinstance(number_type, torch.dtype):
            return number_type
        raise code_found(self.path, f"names {module}.{name}")


def read_metadata(folder: Path) -> Metadata:
    """Read the location of each tensor of a sharded checkpoint.

    Raises:
        UnreadableMetadata: If the file is truncated or not metadata.
        UserError: If it references a class outside ALLOWED, values that would be unpickled, or files elsewhere, unless
            checkpoints are trusted.
    """
    path = folder / METADATA_NAME
    content = path.read_bytes()
    try:
        if are_trusted():
            return pickle.loads(content)  # noqa: S301  # the user trusts it
        read = AllowedOnly(content, path).load()
    except UserError:
        raise
    except UNREADABLE as error:
        raise UnreadableMetadata(f"{METADATA_NAME} cannot be read: {type(error).__name__}") from error

    # It must describe only tensors, in files of the same directory.
    entries, places = getattr(read, "state_dict_metadata", None), getattr(read, "storage_data", None)
    if not (isinstance(read, Metadata) and isinstance(entries, Mapping) and isinstance(places, Mapping)):
        raise UnreadableMetadata(f"{METADATA_NAME} does not describe a checkpoint")
    for name, entry in read.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            raise code_found(path, f"contains {str(name)!r}, which is not a tensor")
    for index, place in read.storage_data.items():
        if not (isinstance(index, MetadataIndex) and isinstance(place, _StorageInfo)):
            raise UnreadableMetadata(f"{METADATA_NAME} does not describe a checkpoint")
        if not SHARD_PATTERN.fullmatch(str(place.relative_path)):
            raise code_found(path, f"names the file {str(place.relative_path)!r}")
    return read


def missing_shard(folder: Path, metadata: Metadata) -> str | None:
    """Describe the first shard that is missing, or shorter than its contents."""
    sizes: dict[str, int] = defaultdict(int)
    for place in metadata.storage_data.values():
        sizes[place.relative_path] = max(sizes[place.relative_path], place.offset + place.length)
    for name, size in sorted(sizes.items()):
        path = folder / name
        if not path.is_file():
            return f"its shard {name} is missing; copy it back, or delete the directory"
        if path.stat().st_size < size:
            return f"its shard {name} has {path.stat().st_size} of {size} bytes; copy it again, or delete the directory"
    return None


class CheckedReader(FileSystemReader):
    """Torch's reader with metadata read through the allowlist."""

    def read_metadata(self, *args: Any, **rest: Any) -> Metadata:  # noqa: ARG002  # later versions of torch name a rank
        """See StorageReader."""
        metadata = read_metadata(Path(self.path))
        assert metadata.storage_meta is not None  # since torch 2.3
        metadata.storage_meta.load_id = self.load_id
        return metadata


def read_tensors(folder: Path, part: str) -> dict[str, Tensor]:
    """Read all tensors of one part, unsharded, by their names within it; raises UserError for other directories."""
    try:
        described = read_metadata(folder).state_dict_metadata
    except (UnreadableMetadata, OSError) as problem:
        raise UserError(f"{folder}: is not a training checkpoint ({problem}). Delete it.") from problem
    tensors = {
        name.removeprefix(f"{part}."): torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in described.items()
        if name.startswith(f"{part}.") and isinstance(entry, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=OF_NO_CONCERN)
        load({part: tensors}, storage_reader=CheckedReader(folder), no_dist=True)
    return tensors
