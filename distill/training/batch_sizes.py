"""How many sequences a process learns from in a step, and in a pass."""

from typing import Literal

import torch
from composer.utils import dist

from architectures.errors import UserError
from architectures.shapes.section import MasksConfig
from distill.recipe.sections.training import DistillConfig


def device_batch_size(config: DistillConfig | MasksConfig) -> int:
    """Sequences per step on one process.

    Raises:
        UserError: If the processes cannot share the global batch evenly.
    """
    size, remainder = divmod(config.global_train_batch_size, dist.get_world_size())
    if remainder:
        section = "distill" if isinstance(config, DistillConfig) else "architecture.masks"
        raise UserError(
            f"{section}.global_train_batch_size must be a multiple of the number of processes, got "
            f"{config.global_train_batch_size} and {dist.get_world_size()}. Change one of the two."
        )
    return size


def microbatch_size(config: DistillConfig | MasksConfig) -> int | Literal["auto"]:
    """Sequences per forward and backward pass. Composer finds it on GPUs; on a processor it is the device's batch."""
    if config.device_train_microbatch_size != "auto" or torch.cuda.is_available():
        return config.device_train_microbatch_size
    return device_batch_size(config)
