"""The machine that times are taken on: threads, and what other programs do.

More threads are not always faster: those of small models wait for each other longer than they compute, and where other
programs run they wait for a core, spinning. `num_threads=auto` times the target's step with several numbers of them.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch

from architectures.progress.processor import ProcessorTimes, contention, processor_times
from architectures.sharing import Share
from eval.records.evidence import StepEvidence, ThreadStep, threads_words

NumThreads = int | Literal["auto"] | None
Step = Callable[[], float]  # does its work once and returns the seconds it took

CGROUP = Path("/sys/fs/cgroup")
VISITS, VISIT_S, MAX_S = 6, 0.05, 20.0  # of every number of threads: turns, seconds of each at least, seconds of all
CLOSE = 1.03  # times the fastest: of numbers so close the smallest is picked, which leaves cores to others


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
            chosen_from=(),
            refused=meanwhile.refused,
            others=meanwhile.others,
            load_average=self.load_average,
        )


@dataclass(frozen=True)
class Threads:
    """A number of threads, and what a step took with each number that was tried where `auto` picked."""

    count: int
    chosen_from: tuple[ThreadStep, ...] = ()

    def noted(self, evidence: StepEvidence | None) -> StepEvidence | None:
        """The evidence of what ran so, with what this number was chosen from."""
        return None if evidence is None else replace(evidence, chosen_from=self.chosen_from)


def pick_threads(requested: NumThreads, target_step: Callable[[], Step]) -> Threads:
    """The number of threads requested; `auto` picks the fastest for the target's step, and prints its choice.

    Args:
        requested: As of `num_threads`.
        target_step: Gives the step that decides; called for `auto` only.
    """
    if requested != "auto":
        return Threads(requested or default_threads())
    tried = step_by_threads(target_step(), thread_counts(default_threads()))
    fastest_ms = min(step.ms for step in tried)
    picked = min(step.threads for step in tried if step.ms <= CLOSE * fastest_ms)
    print(f"num_threads=auto: {threads_words(picked)} ({', '.join(step.words for step in tried)})", flush=True)
    return Threads(picked, tried)


@contextmanager
def threads_of_a_share(chosen: Threads, share: Share) -> Iterator[None]:
    """Run the block with the chosen threads; where several processes do so at once, with no more than each has."""
    count = chosen.count if share.count == 1 else min(chosen.count, torch.get_num_threads())
    with torch_threads(count):
        yield


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
