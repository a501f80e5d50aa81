"""Writing and reading of checkpoints; sharded ones can be resumed on any number of processes.

Composer's own sharded checkpoints are not used: it writes them under their final name, pickles all non-tensors, and
restores of these only the keys that a fresh trainer has, which excludes, e.g., the history of a mixture
(composer/utils/checkpoint.py, mosaicml 0.32.1).

Composer reads checkpoints without an allowlist. It also evaluates the description, a string, of every algorithm of its
own in a checkpoint (State._apply_required_algorithms, mosaicml 0.32.1), so those are rejected, too.
"""

import os
import shutil
import socket
import warnings
from collections.abc import Iterator, Mapping, Set
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from composer import Logger, State, Time
from composer.callbacks import CheckpointSaver
from composer.utils import dist, format_name_with_dist_and_time, reproducibility
from numpy._core.multiarray import _reconstruct  # used by numpy's own pickles
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals
from torch.torch_version import TorchVersion

from architectures.errors import UserError
from architectures.files import partial_path, remove_partials, replacing
from architectures.manifest import MANIFEST_NAME
from distill.callbacks import GradientNorm
from distill.checkpoints import checkpoint_files, folders
from distill.data.batches import UnknownInputs
from distill.process import Process, exit_terminated


class DiskErrors(FileSystemWriter):
    """Torch's writer, raising the OSError itself: the cause of an exception does not reach other processes."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        """See StorageWriter."""
        try:
            return super().write_data(plan, planner)
        except (OSError, RuntimeError) as error:
            cause = checkpoint_files.disk_error(error)
            if cause is None:
                raise
            raise OSError(cause.errno, cause.strerror) from error


def save_shards(state: State, path: Path) -> None:
    """Write a sharded checkpoint and rename it when complete; collective.

    Raises:
        UserError: On all processes, if a write failed, or the machines do not share a file system.
    """
    is_first = dist.get_global_rank() == 0
    partial = Path(agreed(str(partial_path(path)) if is_first else None))
    tensors, beside = tensors_and_rest(state)
    contents = {"state": {**rest_of(state), folders.OPTIMISER: beside}, "rng": reproducibility.get_rng_state()}
    failure: BaseException | None = None
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=folders.OF_NO_CONCERN)
            save(tensors, storage_writer=DiskErrors(partial))
        if is_first:
            with replacing(partial / folders.STATE_NAME) as file:
                torch.save(contents, file)
    except (CheckpointException, OSError, RuntimeError) as error:
        failure = error
    problem = agreed(named_or_removed(partial, path, failure) if is_first else None)
    if problem is not None:
        raise UserError(problem)


def named_or_removed(partial: Path, path: Path, failure: BaseException | None) -> str | None:
    """Rename a complete directory to its final path, or remove it and return the problem."""
    if failure is None:
        problem = folders.missing_shard(partial, folders.read_metadata(partial))
        if problem is None:
            shutil.rmtree(path, ignore_errors=True)  # found damaged on resuming
            partial.rename(path)
            return None
        shutil.rmtree(partial, ignore_errors=True)
        return (
            f"{path}: {problem.split(';')[0]} on rank 0's machine. Put the run directory on a shared "
            "file system, or set distill.checkpoints=whole, which only rank 0 writes."
        )
    shutil.rmtree(partial, ignore_errors=True)
    errors = [each[0] for each in failure.failures.values()] if isinstance(failure, CheckpointException) else [failure]
    cause = next(filter(None, map(checkpoint_files.disk_error, errors)), None)
    if cause is None:
        raise failure
    return checkpoint_files.explain_write_failure(cause, path)


def agreed(value: Any) -> Any:
    """Return rank 0's value on all ranks."""
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def tensors_and_rest(state: State) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return this process's shards of weights and moments, and the optimiser's remaining state.

    Weights come first, which frees those gathered by an evaluation: the optimiser's state has only shards.
    """
    optimizer = state.optimizers[0]
    weights = get_model_state_dict(state.model)
    held = get_optimizer_state_dict(state.model, optimizer)
    return {folders.MODEL: weights, folders.OPTIMISER: held.pop("state")}, {type(optimizer).__qualname__: held}


def rest_of(state: State) -> dict[str, Any]:
    """Return the trainer's state without weights and moments, which would be gathered."""
    attributes = state.serialized_attributes
    state.serialized_attributes = [name for name in attributes if name not in (folders.MODEL, folders.OPTIMISER)]
    try:
        return state.state_dict()
    finally:
        state.serialized_attributes = attributes


def read_into(state: State, folder: Path, beside: Mapping[str, Any]) -> None:
    """Load the weights and moments of a sharded checkpoint, each process its own shards; collective.

    Args:
        beside: The optimiser's state without tensors.
    """
    tensors, own = tensors_and_rest(state)
    warnings.filterwarnings("ignore", message=folders.OF_NO_CONCERN)
    load(tensors, storage_reader=folders.CheckedReader(folder))
    set_model_state_dict(state.model, tensors[folders.MODEL])
    [name], optimizer = own, state.optimizers[0]
    set_optimizer_state_dict(
        state.model, optimizer, optim_state_dict={"state": tensors[folders.OPTIMISER], **beside[name]}
    )


class CheckpointWriter(CheckpointSaver):
    """Composer's saver with atomic writes, which also counts checkpoints of earlier sessions among those it keeps.

    An evaluation at least as good as all earlier ones triggers a checkpoint, kept until another is as good.

    Args:
        save_interval: Composer time string; the end of training is always saved.
        num_to_keep: One more exists during a write, so a failed write loses none.
        best_by: Evaluation metric whose highest value makes a checkpoint the best.
        sharded: Write each process's shards.
        resume_from: A sharded checkpoint to resume from; Composer itself restores only files.
    """

    def __init__(
        self,
        folder: Path,
        *,
        save_interval: str,
        num_to_keep: int,
        best_by: str | None = None,
        sharded: bool = False,
        resume_from: Path | None = None,
    ):
        super().__init__(
            folder=str(folder),
            filename=checkpoint_files.CHECKPOINT_NAME,
            latest_filename=checkpoint_files.LATEST_NAME,
            remote_file_name=None,
            latest_remote_file_name=None,
            save_interval=save_interval,
            num_checkpoints_to_keep=num_to_keep,
            overwrite=True,  # only files found damaged on resuming are ever overwritten
        )
        self.best_by, self.sharded, self.resume_from = best_by, sharded, resume_from
        self.best_value = float("-inf")
        self.best_batch = -1

    def before_load(self, state: State, logger: Logger) -> None:
        """Restore weights, moments, time, callbacks and data from a sharded checkpoint: trainer and model exist.

        Composer restores random states with the first batch.
        """
        if self.resume_from is not None:
            rest = read_state(self.resume_from)
            read_into(state, self.resume_from, rest.pop("optimizers"))
            state.load_state_dict(rest, logger)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Remove partial files of a killed session."""
        super().fit_start(state, logger)
        host = socket.gethostname()
        Process.peers = tuple(pid for name, pid in dist.all_gather_object((host, os.getpid())) if name == host)
        if dist.get_global_rank() == 0:
            remove_partials(Path(self.folder), mark=MANIFEST_NAME)

    def close(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        """Remove the base class's upload directory, without its barrier: other processes may be gone."""
        Process.peers = ()
        self.tmp_dir_for_symlink.cleanup()

    def eval_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        """Record an evaluation at least as good as all earlier ones, except before the first batch."""
        if self.best_by is None or state.timestamp.batch == 0:
            return
        value = float(state.eval_metric_values[self.best_by])
        if value >= self.best_value:
            self.best_value, self.best_batch = value, state.timestamp.batch.value
            if self.last_checkpoint_batch == state.timestamp.batch and dist.get_global_rank() == 0:
                self.tidy(Path(self.folder), self.best_batch)  # an evaluation at the end of an epoch or of training

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        super().batch_checkpoint(state, logger)
        self.save_best(state, logger)
        self.end_if_terminated(state, logger)

    def end_if_terminated(self, state: State, logger: Logger) -> None:
        """Save the batch and exit if any process has received SIGTERM; collective."""
        terminated = state.device.tensor_to_device(torch.tensor(int(Process.is_terminated)))
        dist.all_reduce(terminated, reduce_operation="MAX")
        if terminated.item():
            Process.is_terminated = True  # processes that end first are not lost
            if self.last_checkpoint_batch != state.timestamp.batch:
                self._save_checkpoint(state, logger)
            exit_terminated(f": batch {state.timestamp.batch.value} is saved")

    def epoch_checkpoint(self, state: State, logger: Logger) -> None:
        super().epoch_checkpoint(state, logger)
        self.save_best(state, logger)

    def save_best(self, state: State, logger: Logger) -> None:
        if self.best_batch == state.timestamp.batch != self.last_checkpoint_batch:
            self._save_checkpoint(state, logger)

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "best_value": self.best_value,
            "saved_batch": int(self.last_checkpoint_batch or 0),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best_value = state["best_value"]
        self.last_checkpoint_batch = Time.from_batch(state["saved_batch"])
        super().load_state_dict(state)

    def _save_checkpoint(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Write one file from rank 0, or a directory of shards; collective."""
        self.last_checkpoint_batch = state.timestamp.batch
        is_first = dist.get_global_rank() == 0
        if self.sharded:
            path = Path(self.folder) / format_name_with_dist_and_time(
                checkpoint_files.FOLDER_NAME, state.run_name, state.timestamp
            )
            save_shards(state, path)
        else:
            path = Path(self.filename.format(state))
            contents, problem = {"state": state.state_dict(), "rng": reproducibility.get_rng_state()}, None
            try:
                if is_first:
                    write_checkpoint(contents, path)
            except (OSError, RuntimeError) as error:
                if (cause := checkpoint_files.disk_error(error)) is None:
                    raise
                problem = checkpoint_files.explain_write_failure(cause, path)
            if (problem := agreed(problem)) is not None:
                raise UserError(problem)
        if is_first:
            link_to(path, checkpoint_files.LATEST_NAME.format(rank=0))
            self.tidy(path.parent, checkpoint_files.training_time(path)[0])

    def tidy(self, folder: Path, batch: int) -> None:
        """Point `best` at the best; remove all but it and the newest, first damaged ones beyond the given batch."""
        checkpoints = sorted(
            checkpoint_files.find_checkpoints(folder),
            key=lambda path: (checkpoint_files.training_time(path)[0] <= batch, checkpoint_files.training_time(path)),
        )
        for path in checkpoints:
            if checkpoint_files.training_time(path)[0] == self.best_batch:
                link_to(path, checkpoint_files.BEST_NAME)
        best = folder / checkpoint_files.BEST_NAME
        kept = best.readlink().name if best.is_symlink() else None
        for surplus in checkpoints[: -self.num_checkpoints_to_keep]:
            if surplus.name == kept:
                continue
            if surplus.is_dir() and not surplus.is_symlink():
                shutil.rmtree(surplus)
            else:
                surplus.unlink()  # of a link to an earlier training run only the link


def write_checkpoint(contents: dict[str, Any], path: Path) -> None:
    with replacing(path) as file:
        torch.save(contents, file)


def link_to(path: Path, name: str) -> None:
    link = path.with_name(name)
    link.unlink(missing_ok=True)
    link.symlink_to(path.name)


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
    file, parts = (path / folders.STATE_NAME, set()) if path.is_dir() else (path, {"model"})
    if checkpoint_files.are_trusted():
        return torch.load(file, map_location="cpu", mmap=True, weights_only=False)
    try:
        with safe_globals(ALLOWED), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected pickle protocol")  # of damaged bytes
            foreign = sorted(get_unsafe_globals_in_checkpoint(file))
            if foreign:
                raise checkpoint_files.code_found(file, f"names {foreign[0]}")
            saved = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    except UserError:
        raise
    except checkpoint_files.UNREADABLE as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(f"{file}: is not a training checkpoint ({reason}). Delete it.") from error
    reject_other_contents(saved, file, parts)
    return saved


def read_state(path: Path) -> dict[str, Any]:
    """Read the trainer's state, such as timestamp, callbacks and algorithms; of a file also model and optimiser."""
    return read_checkpoint(path)["state"]


def read_model(path: Path) -> dict[str, Tensor]:
    """Read the model's tensors, unsharded; those of a file are memory-mapped."""
    return folders.read_tensors(path, folders.MODEL) if path.is_dir() else read_state(path)[folders.MODEL]


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
        raise UserError(f"{path}: is not a training checkpoint (it has no model state). Delete it.")
    for name in algorithms_of(state):
        if name not in OWN_ALGORITHMS:
            raise checkpoint_files.code_found(path, f"names the algorithm {name!r}")


def algorithms_of(state: dict[str, Any]) -> Iterator[Any]:
    """Yield the names of algorithms as Composer finds them: it strips a leading underscore off the keys of a state."""
    for key in ("algorithms", "_algorithms"):
        recorded = state.get(key, [])
        entries = recorded if isinstance(recorded, list | tuple | dict) else [recorded]
        yield from (entry[0] if isinstance(entry, tuple | list) and entry else entry for entry in entries)
