"""The machine that times are taken on: its clock and its threads."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from architectures.sharing import Share

Step = Callable[[], float]  # does its work once and returns the seconds it took

CGROUP = Path("/sys/fs/cgroup")


def clock_s(device: torch.device) -> float:
    """A clock reading once the device has done everything asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@contextmanager
def torch_threads(num_threads: int | None) -> Iterator[int]:
    """Run the block with this number of torch threads (None: the default); yields the number."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads or default_threads())
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def default_threads() -> int:
    """OMP_NUM_THREADS, which torch has read at its start, or every usable core where it is not set."""
    return torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else usable_cores()


def usable_cores(cgroup_limit: Path = CGROUP / "cpu.max") -> int:
    """Cores this process may use: its affinity, and the quota of its container where there is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cgroup_limit.is_file():
        quota, period = cgroup_limit.read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def share_threads(share: Share) -> int:
    """Threads of this process where several compute at once: no more than each was started with."""
    return default_threads() if share.count == 1 else min(default_threads(), torch.get_num_threads())
