"""Whether the training of learned masks fits: every process holds all of it. No torch."""

import sys

from architectures.errors import UserError
from architectures.settings.recipe_command import command_of
from architectures.shapes.shape import Shape
from distill.estimates.memory import held_bytes, memory_parts, process_counts, together
from distill.estimates.trainings import Training, mask_training
from distill.recipe.recipe import Recipe
from distill.run.run import Run
from distill.run.training import masks_are_due

REMEDY = "a smaller target, or another architecture.method, such as greedy"


def refuse_sharded_masks(recipe: Recipe, target: Shape, *, on_gpu: bool = False) -> None:
    """Raise UserError if processes are to share a model of which masks are still to be trained.

    Only the draft is divided by distill.parallelism.

    Raises:
        UserError: With what each process would hold.
    """
    if recipe.distill.parallelism != "fsdp2" or not masks_are_due(Run.of(recipe)):
        return
    training = mask_training(recipe, target, on_gpu=on_gpu)
    each = [f"{gib(together(memory_parts(training, count)))} on each of {count}" for count in process_counts(training)]
    raise UserError(
        f"distill.parallelism is fsdp2, and masks are trained whole on every process: {', '.join(each)}, estimated. "
        f"Where a device holds that, train them with ddp ({command_of('masks')}) and set fsdp2 again; else "
        f"use {REMEDY}."
    )


def refuse_masks_beyond(training: Training, *, processes: int, free_bytes: int | None, device: str) -> None:
    """Raise UserError if a process cannot hold what mask training holds at every moment; say so if it may not suffice.

    Args:
        training: Of masks.
        processes: That share the batch.
        free_bytes: Of this process; None where the system does not tell.
        device: Its name.
    """
    least, fullest = held_bytes(training, processes), together(memory_parts(training, processes))
    if free_bytes is None or fullest <= free_bytes:
        return
    free = f"{device} has {gib(free_bytes)} free for each process"
    if least > free_bytes:
        raise UserError(
            f"mask training holds {gib(least)} on every process (weights, gradients, moments and teacher; "
            f"{gib(fullest)} at its fullest, estimated), and {free}. Use a device with more, {REMEDY}."
        )
    print(f"mask training may need {gib(fullest)} on every process, estimated, and {free}", file=sys.stderr)


def gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
