"""How much memory a process may still take, and whether a target that is on the disk can do with it."""

import os
from pathlib import Path

import psutil
import torch

from architectures.files.disk import size
from architectures.settings.holding import Holding
from eval.targets.layer_memory import asked_bytes

CGROUP = Path("/sys/fs/cgroup")
SHARE_OF_FREE = 0.8  # the rest is for what else a process does: drafts, logits, and what its allocator cannot use


def cap_bytes(holding: Holding, device: torch.device) -> tuple[int, str]:
    """What the target may take on a device, and where that number is from."""
    if (asked := asked_bytes(holding)) is not None:
        return asked
    free = free_bytes(device)
    return int(SHARE_OF_FREE * free), f"{size(free).strip()} can be taken here, {SHARE_OF_FREE:.0%} of it by the target"


def free_bytes(device: torch.device) -> int:
    """Memory that this process can still take on a device.

    On a processor the others of a launch take as much as this one, at the same time.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by torch itself
        return torch.cuda.mem_get_info(device)[0] + unused
    of_all = min(psutil.virtual_memory().available, left_by_cgroup())
    return of_all // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def left_by_cgroup() -> int:
    """What the control group of a container leaves; pages of files that it can give back are not counted as used."""
    most, used, told = (CGROUP / f"memory.{name}" for name in ("max", "current", "stat"))
    if not (most.is_file() and used.is_file() and told.is_file()) or most.read_text().strip() == "max":
        return torch.iinfo(torch.int64).max
    counts = dict(line.split() for line in told.read_text().splitlines())
    return int(most.read_text()) - int(used.read_text()) + int(counts.get("inactive_file", 0))
