"""Which training may begin or go on: what it is made from, compared with what the recipe asks for today.

One that a later stage was built on is never replaced.
"""

from architectures.errors import UserError
from architectures.targets.target import require_whole_head
from distill.run.run import Run
from distill.run.stage_inputs import cache_inputs, generate_inputs, prune_inputs, training_inputs


def require_training_inputs(run: Run) -> None:
    """Check that init, data, any cache and any earlier checkpoints are what the recipe asks for.

    Raises:
        UserError: If the target is a draft with a small output head, a stage is missing, or its folder was made from
            other inputs than the recipe now names.
    """
    require_whole_head(run.target)
    run.init.require(prune_inputs(run))
    run.data.require(generate_inputs(run))
    if run.recipe.distill.teacher.is_cache:
        run.teacher_cache.require(cache_inputs(run))
    if run.checkpoints.is_finished:
        run.checkpoints.refuse_changed(training_inputs(run))


def begin_training(run: Run) -> None:
    """Record in <run>/checkpoints what this training starts from. Call on rank 0 only."""
    run.record(run.checkpoints, training_inputs(run))


def refuse_orphaned_training(run: Run) -> None:
    """Refuse to replace an init that checkpoints were trained from."""
    if run.init.is_finished and run.checkpoints.is_finished:
        raise UserError(
            f"{run.init.path} would change, but {run.checkpoints.path} was trained from it. "
            f"Choose another run_name, or delete {run.folder}."
        )


def masks_are_due(run: Run) -> bool:
    """Whether the recipe wants masks that are not finished yet."""
    return run.recipe.architecture.method == "learned_masks" and not run.masks.is_finished
