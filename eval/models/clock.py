"""The clock that everything is timed by."""

import time

import torch


def clock_s(device: torch.device) -> float:
    """A clock reading once the device has done everything asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
