"""How much of the processor this process asked for and did not get, by what the kernel counts of its threads.

Linux counts for every thread how long it ran and how long it waited for a core that another thread had. Elsewhere
nothing of it is known, and nothing is said. A process that this one started counts its own threads.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
LEAST_RAN_S = 0.3  # of all threads together: less says nothing
BUSY_FIELDS = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq, and what the host gave to others


@dataclass(frozen=True)
class ProcessorTimes:
    """At one moment.

    Attributes:
        at_s: When, by a clock that only goes on.
        threads: Seconds that each thread of this process ran and waited, by its id; None where nobody counts them.
        own_s: Processor time of this process and of those it started and that have ended.
        all_s: Of all processes of the machine; None where nobody counts it.
    """

    at_s: float
    threads: Mapping[int, tuple[float, float]] | None
    own_s: float
    all_s: float | None


@dataclass(frozen=True)
class Contention:
    """Between two moments; None where nobody counts.

    Attributes:
        refused: Of the processor time that this process asked for, the share that it waited for.
        others: Cores that other processes kept busy, on average.
    """

    refused: float | None
    others: float | None


def processor_times(proc: Path = PROC) -> ProcessorTimes:
    """Of now."""
    times = os.times()
    own_s = times.user + times.system + times.children_user + times.children_system
    return ProcessorTimes(time.monotonic(), thread_times(proc), own_s, machine_s(proc))


def contention(before: ProcessorTimes, after: ProcessorTimes) -> Contention:
    """What happened between two moments; nothing is said of a share where hardly anything was asked for."""
    others = None
    wall_s = after.at_s - before.at_s
    if before.all_s is not None and after.all_s is not None and wall_s > 0:
        others = max(0.0, after.all_s - before.all_s - (after.own_s - before.own_s)) / wall_s
    if before.threads is None or after.threads is None:
        return Contention(None, others)
    ran, waited = (
        sum(now[index] - before.threads.get(thread, (0.0, 0.0))[index] for thread, now in after.threads.items())
        for index in (0, 1)
    )
    return Contention(waited / (ran + waited) if ran + waited >= LEAST_RAN_S else None, others)


def thread_times(proc: Path) -> dict[int, tuple[float, float]] | None:
    """Seconds that each thread ran and waited."""
    found = {}
    for file in (proc / "self" / "task").glob("*/schedstat"):
        try:
            ran_ns, waited_ns, _ = file.read_text().split()
        except FileNotFoundError:  # the thread has ended meanwhile
            continue
        found[int(file.parent.name)] = (int(ran_ns) / 1e9, int(waited_ns) / 1e9)
    return found or None


def machine_s(proc: Path) -> float | None:
    """Seconds that all cores together were busy since the machine started."""
    file = proc / "stat"
    if not file.is_file():
        return None
    fields = [int(word) for word in file.read_text().splitlines()[0].split()[1:]]
    return sum(fields[index] for index in BUSY_FIELDS if index < len(fields)) / os.sysconf("SC_CLK_TCK")
