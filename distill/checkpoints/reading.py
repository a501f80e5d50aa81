"""Safe reading of checkpoints. A pickle may call any function, so only those that training runs save are allowed.

Composer reads checkpoints without an allowlist. It also evaluates the description, a string, of every algorithm of its
own in a checkpoint (State._apply_required_algorithms, mosaicml 0.32.1), so those are rejected, too.
"""

import warnings
from collections.abc import Iterator, Set
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy._core.multiarray import _reconstruct  # used by numpy's own pickles
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals
from torch.torch_version import TorchVersion

from architectures.errors import UserError
from distill.callbacks import GradientNorm
from distill.checkpoints.folders import MODEL, STATE_NAME, read_tensors
from distill.checkpoints.trust import UNREADABLE, are_trusted, code_found
from distill.data.batches import UnknownInputs

# In addition to tensors and plain values: times, torch's version, and numpy arrays in random states and metrics.
ALLOWED: list[Any] = [
    timedelta,
    TorchVersion,
    np.ndarray,
    np.dtype,
    np.dtypes.UInt32DType,
    np.dtypes.Int64DType,
    np.dtypes.Float32DType,
    np.dtypes.Float64DType,
    np.dtypes.BoolDType,
    _reconstruct,
]
OWN_ALGORITHMS = (GradientNorm.__qualname__, UnknownInputs.__qualname__)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read everything Composer saved, tensors memory-mapped; of a directory only the state without tensors.

    Raises:
        UserError: If it has contents that no training run saves, unless checkpoints are trusted.
    """
    file, parts = (path / STATE_NAME, set()) if path.is_dir() else (path, {"model"})
    saved = read_file(file)
    if not are_trusted():
        reject_other_contents(saved, file, parts)
    return saved


def read_file(path: Path) -> Any:
    if are_trusted():
        return torch.load(path, map_location="cpu", mmap=True, weights_only=False)
    try:
        with safe_globals(ALLOWED), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected pickle protocol")  # of damaged bytes
            foreign = sorted(get_unsafe_globals_in_checkpoint(path))
            if foreign:
                raise code_found(path, f"names {foreign[0]}")
            return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except UserError:
        raise
    except UNREADABLE as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(f"{path}: is no checkpoint of a training ({reason}). Delete it.") from error


def read_state(path: Path) -> dict[str, Any]:
    """Read the trainer's state, such as timestamp, callbacks and algorithms; of a file also model and optimiser."""
    return read_checkpoint(path)["state"]


def read_model(path: Path) -> dict[str, Tensor]:
    """Read the model's tensors, unsharded; those of a file are memory-mapped."""
    return read_tensors(path, MODEL) if path.is_dir() else read_state(path)[MODEL]


def is_free_of_code(path: str | Path, specs: Any = None) -> bool:  # noqa: ARG001  # Composer's signature
    """Validate a checkpoint for Composer before it is read; raises UserError."""
    read_checkpoint(Path(path).resolve())  # resolved, since Composer passes its own link to the file
    return True


def is_trusted(path: str | Path, specs: Any = None) -> bool:  # noqa: ARG001  # Composer's signature
    """Accept any checkpoint, after `--trust-checkpoints`."""
    return True


def reject_other_contents(saved: Any, path: Path, parts: Set[str]) -> None:
    """Raise UserError if a checkpoint lacks the parts that are read, or has an algorithm of Composer's."""
    state = saved.get("state") if isinstance(saved, dict) else None
    if not isinstance(state, dict) or not all(isinstance(state.get(part), dict) for part in parts):
        raise UserError(f"{path}: is no checkpoint of a training (it has no state of a model). Delete it.")
    for name in algorithms_of(state):
        if name not in OWN_ALGORITHMS:
            raise code_found(path, f"names the algorithm {name!r}")


def algorithms_of(state: dict[str, Any]) -> Iterator[Any]:
    """Yield the names of algorithms as Composer finds them: it strips a leading underscore off the keys of a state."""
    for key in ("algorithms", "_algorithms"):
        recorded = state.get(key, [])
        entries = recorded if isinstance(recorded, list | tuple | dict) else [recorded]
        yield from (entry[0] if isinstance(entry, tuple | list) and entry else entry for entry in entries)
