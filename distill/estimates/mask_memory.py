"""Whether the training of learned masks fits a device. No torch."""

import sys

from architectures.errors import UserError
from distill.estimates.memory import held_bytes, memory_parts, together
from distill.estimates.trainings import Training

REMEDY = (
    "distill.parallelism=fsdp2 over more processes, a smaller target, or another architecture.method, such as greedy"
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
