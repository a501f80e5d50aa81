"""How many FLOPs a processor can do: measured, since no table knows. Utilisation is a share of it."""

import time

import torch
from composer import Callback, Event, Logger, State
from composer.callbacks import SpeedMonitor
from composer.utils import create_interval_scheduler

PROBE_SIZE, PROBE_RUNS = 1024, 5
FIRST_SIZE, MOST_S = 128, 0.1  # of the smallest product that is tried, and of one that is repeated


class ProcessorSpeed(Callback):
    """Tells a SpeedMonitor what the processor can do: the most that was measured at the start or since.

    A product that is measured while another program has the processor says too little: one measurement is not enough.
    Nothing is measured on a GPU, which Composer knows by its name. Must stand before the monitor among the callbacks.

    Args:
        monitor: Who is told.
        precision: Of the training: fp32, or amp_bf16.
        interval: Time between measurements, as a Composer time string.
    """

    def __init__(self, monitor: SpeedMonitor, *, precision: str, interval: str):
        self.monitor = monitor
        self.dtype = torch.float32 if precision == "fp32" else torch.bfloat16
        self.is_due = create_interval_scheduler(interval, checkpoint_events=False)

    def init(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        """Measure before the monitor looks for itself."""
        self.measure()

    def batch_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Measure again if it is time."""
        if self.is_due(state, Event.BATCH_END):
            self.measure()

    def measure(self) -> None:
        """Keep the most that was seen."""
        if not torch.cuda.is_available():
            self.monitor.gpu_flops_available = max(
                self.monitor.gpu_flops_available or 0.0, measured_cpu_flops(self.dtype)
            )


def measured_cpu_flops(dtype: torch.dtype) -> float:
    """FLOPs per second of a large matrix product on this process's threads: the best of a few runs.

    A processor without instructions for bfloat16 takes seconds for what others do in milliseconds, and would be asked
    again and again: its product is a smaller one.
    """
    size = FIRST_SIZE
    while size < PROBE_SIZE and 8 * time_product(square_of(size, dtype)) < MOST_S:
        size *= 2
    square = square_of(size, dtype)
    time_product(square)  # the first sets up threads and buffers
    best_s = min(time_product(square) for _ in range(PROBE_RUNS))
    return 2 * size**3 / best_s


def square_of(size: int, dtype: torch.dtype) -> torch.Tensor:
    """What is multiplied by itself."""
    return torch.ones(size, size, dtype=dtype)


def time_product(square: torch.Tensor) -> float:
    start_s = time.perf_counter()
    torch.matmul(square, square)
    return time.perf_counter() - start_s
