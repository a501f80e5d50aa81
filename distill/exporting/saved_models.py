"""Checkpoints of a training as models that can be scored, without writing a folder for each."""

import sys
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel

from architectures.errors import UserError
from distill.checkpoints.files import damage, find_checkpoints
from distill.exporting.export import STUDENT_PREFIX
from distill.exporting.reading import read_state
from distill.recipe.recipe import Recipe
from eval.models.loading import load_model
from eval.training_curve.score import Saved

UNTRAINED = "undistilled"


def saved_models(recipe: Recipe) -> list[Saved]:
    """What the training of a recipe started from, and every intact checkpoint of it, oldest first.

    Raises:
        UserError: If there is no checkpoint.
    """
    run = Path(recipe.run_dir)
    paths = [path for path in find_checkpoints(run / "checkpoints") if is_whole(path)]
    if not paths:
        raise UserError(f"{run / 'checkpoints'}: no checkpoint to score. Run `widedraft distill` first.")
    start = Saved(UNTRAINED, 0, 0, partial(load_model, run / "init", dtype=recipe.eval.dtype))
    return [start, *(saved_model(path, recipe) for path in paths)]


def is_whole(path: Path) -> bool:
    """Whether a checkpoint can be read; one that cannot is named on stderr."""
    problem = damage(path)
    if problem is not None:
        print(f"{path}: cut short or damaged ({problem}); left out.", file=sys.stderr)
    return problem is None


def saved_model(path: Path, recipe: Recipe) -> Saved:
    """One checkpoint, not yet in memory."""
    timestamp = read_state(path)["timestamp"]["Timestamp"]
    name = path.name.removesuffix("-rank0.pt")
    return Saved(name, timestamp["batch"], timestamp["token"], partial(open_checkpoint, path, recipe))


def open_checkpoint(path: Path, recipe: Recipe) -> PreTrainedModel:
    """The student of a checkpoint, its weights rounded as an export rounds them.

    Raises:
        UserError: If it was not trained from <run>/init.
    """
    init = Path(recipe.run_dir) / "init"
    model, rounded = load_model(init, dtype=recipe.eval.dtype), getattr(torch, recipe.export.dtype)
    weights = {
        name.removeprefix(STUDENT_PREFIX): tensor.to(rounded) for name, tensor in read_state(path)["model"].items()
    }
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(
            f"{path}: was not trained from {init} ({str(error).splitlines()[0]}). Take it out of the folder."
        ) from error
    return model
