"""The folder of a stage: begun, finished and current, or refused. No torch."""

from pathlib import Path

from architectures.checkpoints.manifest import changed_inputs, read_manifest
from architectures.errors import UserError
from architectures.shapes.context_length import ContextLength, context_length
from architectures.targets.target import read_config, require_whole_head, resolve_checkpoint
from distill.data.longest_texts import refuse_long_texts
from distill.recipe.recipe import Recipe, save_recipe
from distill.run.older_runs import adopt_older_run


def begin_stage(recipe: Recipe) -> Path:
    """Save the resolved recipe in its run folder and return the target's folder.

    Raises:
        UserError: If there is no such target, it is a draft that says some ids alone, or the recipe's texts may be
            longer than it was made for.
    """
    save_recipe(recipe, Path(recipe.run_dir) / "recipe.yaml")
    target = resolve_checkpoint(
        recipe.target.path, revision=recipe.target.revision, cache=Path(recipe.run_dir) / "target"
    )
    require_whole_head(target)
    refuse_long_texts(recipe, {recipe.target.path: length_of(target)}, {})
    adopt_older_run(recipe, target)
    return target


def length_of(folder: Path) -> ContextLength | None:
    """How long texts the model of a checkpoint folder was made for."""
    return context_length(read_config(folder), where=str(folder / "config.json"))


def is_current(folder: Path, inputs: dict[str, str]) -> bool:
    """Whether the folder is finished and made from these inputs; says so, or says what changed."""
    manifest = read_manifest(folder)
    if manifest is None:
        return False
    changed = changed_inputs(manifest, inputs)
    print(f"   {folder}: {'changed: ' + ', '.join(changed) if changed else 'up to date'}", flush=True)
    return not changed


def require_finished(folder: Path, command: str) -> None:
    """Refuse to go on without the folder that an earlier stage makes."""
    if read_manifest(folder) is None:
        raise UserError(f"{folder}: not there yet. Run `widedraft {command} RECIPE` first, or `widedraft run RECIPE`.")


def refuse_changed(folder: Path, inputs: dict[str, str]) -> None:
    """Raise UserError naming each input in which the folder differs from the recipe."""
    changed = changed_inputs(read_manifest(folder) or {"inputs": {}}, inputs)
    if changed:
        moved = " A branch on the hub moves: target.revision pins a commit." if "target" in changed else ""
        raise UserError(
            f"{folder} was made from another {', '.join(changed)} than the recipe now asks for. "
            f"Choose another run_name, or delete {folder} and what was made from it.{moved}"
        )
