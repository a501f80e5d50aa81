"""The machine that times are taken on: threads, and what other programs do.

More threads are not always faster: those of small models wait for each other longer than they compute, and where other
programs run they wait for a core, spinning. So the target's step is timed with several numbers of them.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from architectures.progress.processor import ProcessorTimes, contention, processor_times
from architectures.sharing import Share
from eval.records.evidence import StepEvidence, ThreadStep

Step = Callable[[], float]  # does its work once and returns the seconds it took

CGROUP = Path("/sys/fs/cgroup")
VISITS, VISIT_S, MAX_S = 6, 0.05, 20.0  # of every number of threads: turns, seconds of each at least, seconds of all


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


@dataclass(frozen=True)
class Started:
    """The machine when timing began."""

    times: ProcessorTimes = field(default_factory=processor_times)
    load_average: float = field(default_factory=lambda: os.getloadavg()[0])

    def evidence(self, by_threads: tuple[ThreadStep, ...]) -> StepEvidence:
        """What disturbed steps that were timed since then."""
        meanwhile = contention(self.times, processor_times())
        return StepEvidence(
            threads=torch.get_num_threads(),
            by_threads=by_threads,
            refused=meanwhile.refused,
            others=meanwhile.others,
            load_average=self.load_average,
        )


def share_threads(share: Share) -> int:
    """Threads of this process where several compute at once: no more than each was started with."""
    return default_threads() if share.count == 1 else min(default_threads(), torch.get_num_threads())


def thread_counts(most: int) -> list[int]:
    """One, half of them, and all, each once."""
    return sorted({1, max(1, most // 2), most})


@torch.inference_mode()
def step_by_threads(step: Step, counts: Sequence[int]) -> tuple[ThreadStep, ...]:
    """Mean time of a step with each number of threads, in interleaved runs."""
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    start_s = time.monotonic()
    for visit in range(VISITS):
        if visit > 0 and time.monotonic() - start_s > MAX_S:
            break
        for count in counts:
            with torch_threads(count):
                step()  # threads are made or woken in it, so it does not count
                taken = [step()]
                while sum(taken) < VISIT_S:
                    taken.append(step())
                seconds[count] += taken
    return tuple(ThreadStep(threads=count, ms=1000 * sum(each) / len(each)) for count, each in seconds.items())
