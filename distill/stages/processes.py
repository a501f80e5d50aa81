"""The stages that train, each in processes of its own: one for every GPU of this machine, or one on its processor."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from architectures.checkpoints.manifest import changed_inputs
from architectures.errors import UserError
from architectures.settings.recipe_command import command_of, handed_on
from distill.recipe.recipe import load_recipe
from distill.run.run import Run
from distill.run.run_folder import held
from distill.run.stage import Finish, Stage, carry_out
from distill.run.stage_inputs import draft_inputs, mask_inputs
from distill.run.training import require_training_inputs


def mask_stage(recipe_path: Path, overrides: Sequence[str]) -> None:
    """Train learned masks into <run>/masks.

    Raises:
        UserError: If the recipe has another method, or masks are there that were made from something else.
    """
    run = Run.of(load_recipe(recipe_path, overrides))
    method = run.recipe.architecture.method
    if method != "learned_masks":
        raise UserError(
            f"{recipe_path}: architecture.method is {method}; only learned_masks has masks to train. "
            f"Run {command_of('prune')} next."
        )

    def train(_: Run, __: Finish) -> None:
        run_training(recipe_path, overrides)

    carry_out(Stage(lambda run: run.masks, mask_inputs, train, changed="refuse"), run)


def distill_stage(recipe_path: Path, overrides: Sequence[str], *options: str) -> None:
    """Train <run>/checkpoints and export <run>/draft.

    Args:
        recipe_path: The recipe.
        overrides: Its key=value words.
        options: Of distill.train besides.
    """
    run = Run.of(load_recipe(recipe_path, overrides))
    require_training_inputs(run)
    draft = run.draft.manifest
    if draft is not None and draft.get("finished") and not changed_inputs(draft, draft_inputs(run)):
        print(f"   {run.draft.path}: up to date{', so there is no step to profile' if options else ''}")
        return
    run_training(recipe_path, [*overrides, *options])


def run_training(recipe_path: Path, overrides: Sequence[str]) -> None:
    """Run `distill.train` in processes of its own; end this one with their exit code if they fail.

    They keep this process's locks, so that a run is owned as long as its training lives.
    """
    command, locks = training_command(recipe_path, overrides), tuple(held.values())
    completed = subprocess.run(command, env=training_environment(), pass_fds=locks, check=False)
    if completed.returncode != 0:
        sys.exit(completed.returncode)  # the training process has said why


def training_command(recipe_path: Path, overrides: Sequence[str]) -> list[str]:
    """The command that trains: one process per GPU through Composer's launcher, or one process."""
    import torch

    module = ["-m", "distill.train", str(recipe_path), *overrides]
    if torch.cuda.device_count() > 1:
        return [sys.executable, "-m", "composer", "-n", str(torch.cuda.device_count()), *module]
    return [sys.executable, *module]


def training_environment() -> dict[str, str]:
    """This environment, with the working folder off the import path: a user's own eval.py must not hide ours."""
    return {**os.environ, "PYTHONSAFEPATH": "1", **handed_on()}
