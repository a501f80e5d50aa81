"""What the machine can do at most: matrix products, reading its memory; and which versions it has."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch

from architectures.manifest import provenance
from benchmarks.gpu.stage import Row, Setting, number_type
from eval.large_targets import free_bytes
from eval.machine import clock_s, usable_cores

BANDWIDTH_BYTES = {"cpu": 2**29, "cuda": 2**32}
BANDWIDTH_REPEATS = 12
ROW_LENGTH = 2**14
GPU_FIELDS = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "clocks_event_reasons.active")
SIDE = {"full": 8192, "laptop": 1024, "tiny": 256}
READ_BYTES = {"tiny": 2**24}  # elsewhere what memory_bandwidth takes by itself
PRODUCTS, REPEATS = 10, 7


def rows(setting: Setting) -> Iterator[Row]:
    """One row of the machine, then one of each number type."""
    device = setting.device
    told = provenance()
    yield {
        "bandwidth_gb_s": bandwidth(setting) / 1e9,
        "free_gib": round((free_bytes(device) or 0) / 2**30, 1),
        "cores": usable_cores(),
        "versions": told["versions"],
        "python": told["python"],
        "state": machine_state(device),
        "dtype": str(number_type(device)).removeprefix("torch."),
    }
    for dtype in dict.fromkeys((number_type(device), torch.float32)):
        name = str(dtype).removeprefix("torch.")
        yield {"dtype": name, "peak_flops": peak_flops(device, dtype, SIDE[setting.size]), "side": SIDE[setting.size]}


def bandwidth(setting: Setting) -> float:
    """Bytes a second at which memory is read, as every floor of the bench takes it: the faster of two ways."""
    return max(memory_bandwidth(setting.device, num_bytes=READ_BYTES.get(setting.size)).values())


def peak_flops(device: torch.device, dtype: torch.dtype, side: int) -> float:
    """FLOP/s of a square matrix product of random numbers: the median of a few runs of several products."""
    generator = torch.Generator(device).manual_seed(17)
    left, right = (torch.randn(side, side, device=device, generator=generator).to(dtype) for _ in range(2))
    out = torch.empty(side, side, device=device, dtype=dtype)
    seconds = [products_s(left, right, out) for _ in range(REPEATS + 1)][1:]
    return 2 * side**3 * PRODUCTS / median(seconds)


def products_s(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> float:
    """Seconds of some products, one after the other."""
    start_s = clock_s(left.device)
    for _ in range(PRODUCTS):
        torch.matmul(left, right, out=out)
    return clock_s(left.device) - start_s


def machine_state(device: torch.device) -> dict[str, Any]:
    """Load and, of a GPU, clocks, temperature, power and throttle reasons as nvidia-smi prints them."""
    gpu, program = None, shutil.which("nvidia-smi")
    if device.type == "cuda" and program is not None:
        command = [program, f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode == 0:
            rows = (line.split(", ") for line in result.stdout.splitlines())
            gpu = tuple(dict(zip(GPU_FIELDS, row, strict=True)) for row in rows)
    return {"load_average": round(os.getloadavg()[0], 2), "gpu": gpu}


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
