"""What a sharded checkpoint says of itself: `.metadata`, a pickle of torch's, read by a list of the classes in it.

Torch's own reader unpickles the file without such a list. It also unpickles whatever a checkpoint holds beside tensors,
so a checkpoint that holds anything beside tensors is refused as well (torch.distributed.checkpoint, torch 2.7 to 2.11).
"""

import io
import pathlib
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.filesystem import _StorageInfo
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
from torch.serialization import _get_layout

from architectures.errors import UserError
from distill.checkpoints.trust import are_trusted, code_found

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
    ("pathlib", "PosixPath"): pathlib.PosixPath,  # where it was written
    ("pathlib._local", "PosixPath"): pathlib.PosixPath,  # Python 3.13 calls it so
}
# What an unpickler raises on bytes that no pickler wrote.
UNREADABLE = (
    pickle.UnpicklingError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    EOFError,
    ArithmeticError,
    ImportError,
    MemoryError,
    RuntimeError,
)


class UnreadableMetadata(Exception):  # noqa: N818  # says what is wrong with a file
    """Why bytes are no metadata, in a few words."""


class AllowedOnly(pickle.Unpickler):
    """Finds the classes of ALLOWED and number types; refuses any other before it is imported.

    Args:
        content: The pickle.
        path: Where it is from.
    """

    def __init__(self, content: bytes, path: Path):
        super().__init__(io.BytesIO(content))
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        """What the pickle names, if our own writing could have named it."""
        if (module, name) in ALLOWED:
            return ALLOWED[module, name]
        number_type = getattr(torch, name, None) if module == "torch" else None
        if isinstance(number_type, torch.dtype):
            return number_type
        raise code_found(self.path, f"names {module}.{name}")


def read_metadata(folder: Path) -> Metadata:
    """Where each tensor of a sharded checkpoint lies.

    Raises:
        UnreadableMetadata: If the file is cut short, or says nothing of this kind.
        UserError: If it names a class that no checkpoint of ours does, unless checkpoints are trusted.
        OSError: If it cannot be read.
    """
    path = folder / METADATA_NAME
    content = path.read_bytes()
    try:
        if are_trusted():
            return pickle.loads(content)  # noqa: S301  # whatever is in it, as was asked for
        read = AllowedOnly(content, path).load()
    except UserError:
        raise
    except UNREADABLE as error:
        raise UnreadableMetadata(f"{METADATA_NAME} cannot be read: {type(error).__name__}") from error
    require_tensors(read, path)
    return read


def require_tensors(read: Any, path: Path) -> None:
    """Refuse metadata of anything but tensors in files beside it.

    Raises:
        UnreadableMetadata: If it is no metadata, or its parts are not what they should be.
        UserError: If it tells of values that would be unpickled, or of files elsewhere.
    """
    if not isinstance(read, Metadata):
        raise UnreadableMetadata(f"{METADATA_NAME} holds no description of a checkpoint")
    if not (isinstance(read.state_dict_metadata, Mapping) and isinstance(read.storage_data, Mapping)):
        raise UnreadableMetadata(f"{METADATA_NAME} lists no tensors")
    for name, said in read.state_dict_metadata.items():
        if not isinstance(said, TensorStorageMetadata):
            raise code_found(path, f"holds {str(name)!r}, which is no tensor")
    for index, place in read.storage_data.items():
        if not (isinstance(index, MetadataIndex) and isinstance(place, _StorageInfo)):
            raise UnreadableMetadata(f"{METADATA_NAME} does not say where its tensors are")
        if not SHARD_PATTERN.fullmatch(str(place.relative_path)):
            raise code_found(path, f"names the file {str(place.relative_path)!r}")
