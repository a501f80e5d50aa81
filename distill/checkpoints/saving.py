"""Sharded checkpoints, written while training goes on, and read back by any number of processes.

Each process copies its shards of weights and moments to host memory and writes its own file in a thread of its own
(torch.distributed.checkpoint.async_save). Composer's own sharded checkpoints are not used: it waits for them, writes
them under their final name, pickles whatever is no tensor, and on reading restores of that only the keys that a fresh
trainer has, which leaves out the history of a mixture, say (composer/utils/checkpoint.py, mosaicml 0.32.1).
"""

import shutil
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from composer import State
from composer.utils import dist, reproducibility
from torch import distributed
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
from torch.distributed.checkpoint.state_dict_saver import async_save

from architectures.errors import UserError
from architectures.files.atomic import partial_path, replacing
from distill.checkpoints.files import disk_error, explain_write_failure
from distill.checkpoints.folders import (
    MODEL,
    OF_NO_CONCERN,
    OPTIMISER,
    STATE_NAME,
    CheckedReader,
    missing_shard,
    read_metadata,
)


@dataclass(frozen=True)
class Writing:
    """A checkpoint that is being written, and the name it gets when all of it is there."""

    path: Path
    partial: Path
    future: Future[Any]


class DiskErrors(FileSystemWriter):
    """Torch's writer, which fails with the operating system's error: a cause does not reach other processes."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        """See StorageWriter."""
        try:
            return super().write_data(plan, planner)
        except (OSError, RuntimeError) as error:
            cause = disk_error(error)
            if cause is None:
                raise
            raise OSError(cause.errno, cause.strerror) from error


def writers_group() -> distributed.ProcessGroup | None:
    """A group for the writing threads, whose messages must not meet those of training; all processes call this."""
    return distributed.new_group(backend="gloo") if distributed.is_initialized() else None


def begin_writing(state: State, path: Path, group: distributed.ProcessGroup | None) -> Writing:
    """Copy what a checkpoint holds and begin to write it; all processes call this.

    Args:
        state: Of the trainer, between two batches.
        path: The folder that appears when all of it is written.
        group: As writers_group made it.

    Raises:
        UserError: On all processes, if the disk refuses already.
    """
    partial = agreed(str(partial_path(path)) if dist.get_global_rank() == 0 else None)
    tensors, beside = tensors_and_rest(state)
    contents = {"state": {**rest_of(state), OPTIMISER: beside}, "rng": reproducibility.get_rng_state()}
    problem = write_rest(contents, Path(partial), path) if dist.get_global_rank() == 0 else None
    if (problem := agreed(problem)) is not None:
        raise UserError(problem)
    warnings.filterwarnings("ignore", message=OF_NO_CONCERN)
    future = async_save(tensors, storage_writer=DiskErrors(partial), process_group=group)
    return Writing(path, Path(partial), cast("Future[Any]", future))


def agreed(value: Any) -> Any:
    """What rank 0 has."""
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def tensors_and_rest(state: State) -> tuple[dict[str, Any], dict[str, Any]]:
    """This process's shards of weights and moments, and what the optimiser holds beside them.

    Weights are asked for first, which lets go of what an evaluation left gathered: the optimiser knows shards alone.
    """
    optimizer = state.optimizers[0]
    weights = get_model_state_dict(state.model)
    held = get_optimizer_state_dict(state.model, optimizer)
    return {MODEL: weights, OPTIMISER: held.pop("state")}, {type(optimizer).__qualname__: held}


def rest_of(state: State) -> dict[str, Any]:
    """Everything of a trainer but weights and moments, which are not gathered for it."""
    attributes = state.serialized_attributes
    state.serialized_attributes = [name for name in attributes if name not in (MODEL, OPTIMISER)]
    try:
        return state.state_dict()
    finally:
        state.serialized_attributes = attributes


def write_rest(contents: Mapping[str, Any], partial: Path, path: Path) -> str | None:
    """Write what is no shard; the problem in words if the disk refused."""
    try:
        with replacing(partial / STATE_NAME) as file:
            torch.save(contents, file)
    except (OSError, RuntimeError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        cause = disk_error(error)
        if cause is None:
            raise
        return explain_write_failure(cause, path)
    return None


def is_written(writing: Writing, state: State) -> bool:
    """Whether all processes are done with it, well or not; all of them call this and hear the same."""
    done = state.device.tensor_to_device(torch.tensor([int(writing.future.done())]))
    dist.all_reduce(done, reduce_operation="MIN")
    return bool(done.item())


def finish_writing(writing: Writing) -> str | None:
    """Give a written checkpoint its name, by rank 0 alone; the problem in words if there was one.

    Raises:
        Exception: Whatever it was that no disk did.
    """
    error = writing.future.exception()
    if error is None:
        return publish(writing)
    shutil.rmtree(writing.partial, ignore_errors=True)
    cause = first_disk_error(error)
    if cause is None:
        raise error
    return explain_write_failure(cause, writing.path)


def publish(writing: Writing) -> str | None:
    """The rename; refused where a shard is not there, as on machines that each have a disk of their own."""
    problem = missing_shard(writing.partial, read_metadata(writing.partial))
    if problem is not None:
        shutil.rmtree(writing.partial, ignore_errors=True)
        return (
            f"{writing.path}: {problem.split(';')[0]} where rank 0 looks for it. Put the run folder on a disk that all "
            "machines share, or choose distill.checkpoints=whole, which rank 0 writes alone."
        )
    if writing.path.exists():  # found damaged on resuming
        shutil.rmtree(writing.path)
    writing.partial.rename(writing.path)
    return None


def first_disk_error(error: BaseException) -> OSError | None:
    """What the disk of any process said."""
    if not isinstance(error, CheckpointException):
        return disk_error(error)
    return next(filter(None, (disk_error(failure[0]) for failure in error.failures.values())), None)


def read_into(state: State, folder: Path, beside: Mapping[str, Any]) -> None:
    """Put the weights and moments of a sharded checkpoint into a trainer, each process its own shards; all call this.

    Args:
        state: Of a trainer of the same model.
        folder: The checkpoint, from however many processes.
        beside: What the optimiser held beside them.
    """
    tensors, own = tensors_and_rest(state)
    warnings.filterwarnings("ignore", message=OF_NO_CONCERN)
    load(tensors, storage_reader=CheckedReader(folder))
    set_model_state_dict(state.model, tensors[MODEL])
    [name], optimizer = own, state.optimizers[0]
    set_optimizer_state_dict(state.model, optimizer, optim_state_dict={"state": tensors[OPTIMISER], **beside[name]})
