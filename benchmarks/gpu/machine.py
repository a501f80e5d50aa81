"""What the machine can do at most: matrix products, reading its memory; and which versions it has."""

from collections.abc import Iterator
from statistics import median

import torch

from architectures.checkpoints.manifest import provenance
from benchmarks.gpu.stage import Row, Setting, number_type
from eval.latency.machine import machine_state, memory_bandwidth, usable_cores
from eval.latency.memory import free_bytes
from eval.models.clock import clock_s

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
        "state": vars(machine_state(device)),
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
