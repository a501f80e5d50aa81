"""What a node of SkyPilot finds: a copy of the working folder, and the disk that all share. No torch."""

import os
from pathlib import Path

from architectures.errors import UserError
from distill.debug.recipe import SUFFIX
from distill.launching.lines import SHARED
from distill.recipe.recipe import Recipe


def recipe_in_copy(path: Path) -> Path:
    """A recipe as the nodes find it.

    Raises:
        UserError: If they do not.
    """
    if path.is_relative_to(SHARED):
        return path
    within = Path(os.path.relpath(path))
    if within.parts[0] == os.pardir:
        raise UserError(
            f"{path}: is not in the working folder, which is what SkyPilot copies to its nodes. Call this in a folder "
            f"that recipe, prompts and target are in, or name a recipe on {SHARED}."
        )
    return within


def run_dir_words(recipe: Recipe, *, debug: bool) -> tuple[str, ...]:
    """What puts a run on the disk that all share; nothing where the recipe names a path from the root.

    Args:
        recipe: That is started, after --debug.
        debug: Whether it was shrunk, which renames it once more on the nodes.

    Raises:
        UserError: If each node would write into a copy of its own.
    """
    ending = SUFFIX if debug else ""
    name, run_dir = recipe.run_name.removesuffix(ending), Path(recipe.run_dir.removesuffix(ending))
    if run_dir.is_absolute():
        return ()
    if run_dir != Path("runs") / name:
        raise UserError(
            f"run_dir is {run_dir}, which is in the copy that each node has of the working folder: no other would see "
            f"it. Put it under {SHARED}, or leave it out for {SHARED}/{name}."
        )
    return (f"run_dir={SHARED}/{name}",)
