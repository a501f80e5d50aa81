"""How much memory a process may still take, and whether a target that is on the disk can do with it."""

import os
import resource
from pathlib import Path

import torch

from architectures.files.disk import size
from architectures.settings.holding import Holding
from eval.targets.layer_memory import asked_bytes

PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")
SHARE_OF_FREE = 0.8  # the rest is for what else a process does: drafts, logits, and what its allocator cannot use


def cap_bytes(holding: Holding, device: torch.device) -> tuple[int, str]:
    """What the target may take on a device, and where that number is from."""
    if (asked := asked_bytes(holding)) is not None:
        return asked
    free = free_bytes(device)
    return int(SHARE_OF_FREE * free), f"{size(free).strip()} can be taken here, {SHARE_OF_FREE:.0%} of it by the target"


def free_bytes(device: torch.device) -> int:
    """Memory that this process can still take on a device: what is free, and what its own limits leave of it.

    On a processor the others of a launch take as much as this one, at the same time.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by torch itself
        return torch.cuda.mem_get_info(device)[0] + unused
    limits = left_by_limit("AS", "VmSize"), left_by_limit("DATA", "VmData")
    of_all = min(available_bytes(), left_by_cgroup()) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(0, min(of_all, *limits))


def available_bytes() -> int:
    """What the machine has; where it does not say, what it has in all."""
    meminfo = PROC / "meminfo"
    if meminfo.is_file():
        return kibibytes(meminfo, "MemAvailable") * 1024
    return torch.iinfo(torch.int64).max


def left_by_limit(name: str, used: str) -> int:
    """What a limit of this process leaves, as `ulimit` sets them."""
    limit, _ = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
    status = PROC / "self/status"
    if limit == resource.RLIM_INFINITY or not status.is_file():
        return torch.iinfo(torch.int64).max
    return limit - kibibytes(status, used) * 1024


def left_by_cgroup() -> int:
    """What the control group of a container leaves; pages of files that it can give back are not counted as used."""
    most, used, told = (CGROUP / f"memory.{name}" for name in ("max", "current", "stat"))
    if not (most.is_file() and used.is_file() and told.is_file()) or most.read_text().strip() == "max":
        return torch.iinfo(torch.int64).max
    counts = dict(line.split() for line in told.read_text().splitlines())
    return int(most.read_text()) - int(used.read_text()) + int(counts.get("inactive_file", 0))


def kibibytes(file: Path, name: str) -> int:
    """A line of a file of /proc."""
    lines = dict(line.split(":", 1) for line in file.read_text().splitlines() if ":" in line)
    return int(lines[name].split()[0])
