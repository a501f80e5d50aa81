"""Checkpoints of a training as models that can be scored, without writing a folder for each."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel

from architectures.checkpoints.fingerprint import fingerprint_checkpoint, fingerprint_value
from architectures.errors import UserError
from architectures.files.file_hashes import sha256_of_files
from architectures.settings.recipe_command import command_of
from distill.checkpoints.files import OF_A_FILE, damage, find_checkpoints
from distill.exporting.export import STUDENT_PREFIX
from distill.exporting.reading import read_model, read_state
from distill.run.run import Run
from eval.checkpoint_curve import Saved
from eval.models.loading import load_model
from eval.scorecard_schema import UNDISTILLED


def saved_models(run: Run) -> list[Saved]:
    """What the training of a run started from, and every intact checkpoint of it, oldest first.

    Raises:
        UserError: If there is no checkpoint.
    """
    folder, init = run.checkpoints.path, run.init.path
    paths = [path for path in find_checkpoints(folder) if is_whole(path)]
    if not paths:
        raise UserError(f"{folder}: no checkpoint to score. Run {command_of('distill')} first.")
    dtype, rounded = run.recipe.eval.dtype, run.recipe.export.dtype
    start = Saved(UNDISTILLED, 0, 0, fingerprint_checkpoint(init), partial(load_model, init, dtype=dtype))
    load = partial(load_checkpoint, init, dtype=dtype, rounded=rounded)
    return [start, *(saved_model(path, (start.fingerprint, rounded), partial(load, path)) for path in paths)]


def is_whole(path: Path) -> bool:
    """Whether a checkpoint can be read; one that cannot is named on stderr."""
    problem = damage(path)
    if problem is not None:
        print(f"{path}: cut short or damaged ({problem}); left out.", file=sys.stderr)
    return problem is None


def saved_model(path: Path, beside: tuple[str, ...], load: Callable[[], PreTrainedModel]) -> Saved:
    """One checkpoint, not yet in memory; beside is what decides its model too."""
    timestamp = read_state(path)["timestamp"]["Timestamp"]
    name = path.name.removesuffix(OF_A_FILE)
    files = [path] if path.is_file() else sorted(path.iterdir())
    weights = sha256_of_files(files, description=f"hashing {path.name}")
    return Saved(name, timestamp["batch"], timestamp["token"], fingerprint_value([*weights, *beside]), load)


def load_checkpoint(init: Path, path: Path, *, dtype: str, rounded: str) -> PreTrainedModel:
    """The student of a checkpoint, its weights rounded as an export rounds them.

    Args:
        init: What its training started from.
        path: The checkpoint.
        dtype: Number type of the model.
        rounded: That an export would round its weights to.

    Raises:
        UserError: If it was not trained from init.
    """
    model, kept = load_model(init, dtype=dtype), getattr(torch, rounded)
    weights = {name.removeprefix(STUDENT_PREFIX): tensor.to(kept) for name, tensor in read_model(path).items()}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(
            f"{path}: was not trained from {init} ({str(error).splitlines()[0]}). Take it out of the folder."
        ) from error
    return model
