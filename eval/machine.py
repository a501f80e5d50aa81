"""Clock and CPU threads for timing."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from architectures.sharing import Share

Step = Callable[[], float]  # runs once and returns its seconds

CGROUP = Path("/sys/fs/cgroup")


def clock_s(device: torch.device) -> float:
    """Return the time after all queued work of the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@contextmanager
def torch_threads(num_threads: int | None) -> Iterator[int]:
    """Set the number of torch threads in a block (None: the default); yields the number."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads or default_threads())
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def default_threads() -> int:
    """Return OMP_NUM_THREADS, which torch reads at startup, or all usable cores if it is not set."""
    return torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else usable_cores()


def share_cores(processes: int) -> None:
    """Give each of this machine's processes its share of the cores, unless OMP_NUM_THREADS is set.

    Neither Composer's launcher nor torch shares them: eight processes would start eight times as many threads as cores.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, usable_cores() // processes))


def usable_cores(cgroup_limit: Path = CGROUP / "cpu.max") -> int:
    """Return the number of cores this process may use, by its affinity and its container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cgroup_limit.is_file():
        quota, period = cgroup_limit.read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def share_threads(share: Share) -> int:
    """Return this process's threads; with several processes, at most the number each was started with."""
    return default_threads() if share.count == 1 else min(default_threads(), torch.get_num_threads())
