"""What the machine is doing while times are taken: threads, clocks, other load, throttling, and how fast memory is."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from eval.models.clock import clock_s
from eval.records.grid import MachineState
from eval.targets.caps import free_bytes

BANDWIDTH_BYTES = {"cpu": 2**29, "cuda": 2**32}
BANDWIDTH_REPEATS = 12
ROW_LENGTH = 2**14
GPU_QUESTIONS = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "clocks_event_reasons.active")
CGROUP = Path("/sys/fs/cgroup")


@contextmanager
def torch_threads(num_threads: int | None) -> Iterator[int]:
    """Run the block with this number of torch threads; yields the number.

    Args:
        num_threads: None for as many as OMP_NUM_THREADS says, or every usable core where it is not set.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads or default_threads())
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def default_threads() -> int:
    """As many as OMP_NUM_THREADS says, which torch has read at its start, or every usable core where it is not set."""
    return torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else usable_cores()


def usable_cores(cgroup_limit: Path = CGROUP / "cpu.max") -> int:
    """Cores this process may use: its affinity, and the quota of its container where there is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cgroup_limit.is_file():
        quota, period = cgroup_limit.read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def machine_state(device: torch.device) -> MachineState:
    return MachineState(
        load_average=round(os.getloadavg()[0], 2),
        processor_mhz=processor_mhz(),
        throttled_periods=throttled_periods(),
        gpu=gpu_state() if device.type == "cuda" else None,
    )


def processor_mhz(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[float, float] | None:
    """The lowest and the highest clock of the cores."""
    if not cpuinfo.is_file():
        return None
    clocks = [float(line.split(":")[1]) for line in cpuinfo.read_text().splitlines() if line.startswith("cpu MHz")]
    return (min(clocks), max(clocks)) if clocks else None


def throttled_periods(statistics: Path = CGROUP / "cpu.stat") -> int | None:
    """How often this container has been stopped for having used up its share of the processor."""
    if not statistics.is_file():
        return None
    counts = dict(line.split() for line in statistics.read_text().splitlines())
    return int(counts["nr_throttled"]) if "nr_throttled" in counts else None


def gpu_state() -> tuple[dict[str, str], ...] | None:
    """Clocks, temperature, power and throttle reasons of every GPU, as nvidia-smi prints them."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, f"--query-gpu={','.join(GPU_QUESTIONS)}", "--format=csv,noheader"]
    answered = subprocess.run(command, capture_output=True, text=True, check=False)
    if answered.returncode != 0:
        return None
    rows = (line.split(", ") for line in answered.stdout.splitlines())
    return tuple(dict(zip(GPU_QUESTIONS, row, strict=True)) for row in rows)


def memory_bandwidth(device: torch.device, *, num_bytes: int | None = None) -> dict[str, float]:
    """Bytes a second that memory moves: the best of some runs of copying, and of a product of matrix and vector.

    A copy counts what it reads and what it writes. A processor also reads what it is about to write over, which nobody
    counts; so the product, which only reads, as a decoding step does, may come out faster.

    Args:
        device: Whose memory.
        num_bytes: Of the tensor copied, and of the matrix; by default far more than any cache holds, and enough that
            starting the work takes no share of the time, where so much can be taken.
    """
    num_bytes = num_bytes or min(BANDWIDTH_BYTES[device.type], takeable_bytes(device))
    matrix = torch.ones(num_bytes // 4 // ROW_LENGTH, ROW_LENGTH, device=device)
    vector, target = torch.ones(ROW_LENGTH, device=device), torch.empty_like(matrix)
    copied_s, read_s = (
        min(seconds(work, device) for _ in range(BANDWIDTH_REPEATS))
        for work in (lambda: target.copy_(matrix), lambda: matrix @ vector)
    )
    return {"copy": 2 * matrix.nbytes / copied_s, "read": matrix.nbytes / read_s}


def takeable_bytes(device: torch.device) -> int:
    """A quarter of the memory that can be taken, in whole rows: of two tensors, beside what else a command holds."""
    row = 4 * ROW_LENGTH
    return max(1, free_bytes(device) // 4 // row) * row


def seconds(work: Callable[[], object], device: torch.device) -> float:
    start_s = clock_s(device)
    work()
    return clock_s(device) - start_s
