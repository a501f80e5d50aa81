"""Which training may begin or go on: its inputs compared with what the recipe asks for today, and recorded.

One that a later stage was built on is never replaced.
"""

from pathlib import Path

from architectures.checkpoints.manifest import (
    read_manifest,
    write_manifest,
)
from architectures.errors import UserError
from architectures.targets.target import require_whole_head, resolve_checkpoint
from distill.recipe.recipe import Recipe
from distill.recipe.teacher import Cache
from distill.run.older_runs import adopt_older_run
from distill.run.stage_folders import refuse_changed, require_finished
from distill.run.stage_inputs import (
    cache_inputs,
    draft_inputs,
    generate_inputs,
    prune_inputs,
    recipe_hash,
    source_record,
    target_record,
    training_inputs,
)


def require_training_inputs(recipe: Recipe) -> dict[str, str]:
    """Check that init, data, any cache and any earlier checkpoints are what this recipe asks for; return fingerprints.

    Raises:
        UserError: If the target is a draft that says some ids alone, a stage is missing, or its folder was made from
            other inputs than the recipe now names.
    """
    run = Path(recipe.run_dir)
    target = resolve_checkpoint(recipe.target.path, revision=recipe.target.revision, cache=run / "target")
    require_whole_head(target)
    adopt_older_run(recipe, target)
    for name, command, inputs in (
        ("init", "prune", prune_inputs(recipe, target)),
        ("data", "generate", generate_inputs(recipe, target)),
    ):
        require_finished(run / name, command)
        refuse_changed(run / name, inputs)
    if isinstance(recipe.distill.teacher, Cache):
        require_finished(run / "teacher_cache", "cache")
        refuse_changed(run / "teacher_cache", cache_inputs(recipe, target))
    training = training_inputs(recipe)
    if read_manifest(run / "checkpoints") is not None:
        refuse_changed(run / "checkpoints", training)
    return training


def refuse_orphaned_training(recipe: Recipe, init: Path) -> None:
    """Refuse to replace an init that checkpoints were trained from."""
    if read_manifest(init) is not None and read_manifest(Path(recipe.run_dir) / "checkpoints") is not None:
        raise UserError(
            f"{init} would change, but {Path(recipe.run_dir) / 'checkpoints'} was trained from it. "
            f"Choose another run_name, or delete {recipe.run_dir}."
        )


def begin_training(recipe: Recipe) -> None:
    """Record in <run>/checkpoints what this training starts from. Call on rank 0 only."""
    write_manifest(
        Path(recipe.run_dir) / "checkpoints",
        stage="distill",
        inputs=training_inputs(recipe),
        recipe=recipe_hash(recipe),
        seed=recipe.seed,
    )


def write_draft_manifest(recipe: Recipe, folder: Path, *, checkpoint: str, finished: bool) -> None:
    """Write the manifest of a draft folder: target and revision, recipe, versions, the checkpoint it came from."""
    write_manifest(
        folder,
        stage="export",
        inputs=draft_inputs(recipe, training_inputs(recipe)),
        finished=finished,
        checkpoint=checkpoint,
        target=target_record(recipe),
        **source_record(recipe),
        recipe=recipe_hash(recipe),
        seed=recipe.seed,
    )


def masks_are_due(recipe: Recipe) -> bool:
    """Whether the recipe wants masks that are not finished yet."""
    masks = Path(recipe.run_dir) / "masks"
    return recipe.architecture.method == "learned_masks" and read_manifest(masks) is None
