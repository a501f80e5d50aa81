"""Sharded checkpoints: every process writes its own shards, and any number of processes reads them back.

Composer's own sharded checkpoints are not used: it writes them under their final name, pickles whatever is no tensor,
and on reading restores of that only the keys that a fresh trainer has, which leaves out the history of a mixture, say
(composer/utils/checkpoint.py, mosaicml 0.32.1).
"""

import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from composer import State
from composer.utils import dist, reproducibility
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


def save_shards(state: State, path: Path) -> None:
    """Write a checkpoint into a folder that gets its name when all of it is there; all processes call this.

    Raises:
        UserError: On all processes, if a disk refused, or the machines do not share one.
    """
    is_first = dist.get_global_rank() == 0
    partial = Path(agreed(str(partial_path(path)) if is_first else None))
    tensors, beside = tensors_and_rest(state)
    contents = {"state": {**rest_of(state), OPTIMISER: beside}, "rng": reproducibility.get_rng_state()}
    failure: BaseException | None = None
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=OF_NO_CONCERN)
            save(tensors, storage_writer=DiskErrors(partial))
        if is_first:
            with replacing(partial / STATE_NAME) as file:
                torch.save(contents, file)
    except (CheckpointException, OSError, RuntimeError) as error:
        failure = error
    problem = agreed(named_or_removed(partial, path, failure) if is_first else None)
    if problem is not None:
        raise UserError(problem)


def named_or_removed(partial: Path, path: Path, failure: BaseException | None) -> str | None:
    """Give a written folder its name, or remove it and return the problem in words."""
    if failure is None:
        problem = missing_shard(partial, read_metadata(partial))
        if problem is None:
            shutil.rmtree(path, ignore_errors=True)  # found damaged on resuming
            partial.rename(path)
            return None
        shutil.rmtree(partial, ignore_errors=True)
        return (
            f"{path}: {problem.split(';')[0]} where rank 0 looks for it. Put the run folder on a disk that all "
            "machines share, or choose distill.checkpoints=whole, which rank 0 writes alone."
        )
    shutil.rmtree(partial, ignore_errors=True)
    errors = [each[0] for each in failure.failures.values()] if isinstance(failure, CheckpointException) else [failure]
    cause = next(filter(None, map(disk_error, errors)), None)
    if cause is None:
        raise failure
    return explain_write_failure(cause, path)


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
