"""Attention whose shapes differ from call to call: not cuDNN's, which makes a plan for every shape it first meets.

On an NVIDIA H200 a training step took 0.35 s more wherever its width was new (torch 2.11, docs/gpu.md). Decoding and
the reading of single texts meet new widths all the time; training pads to few (distill/training/batches.py). Steps of
fixed shapes (eval/steps/fixed_steps.py) keep cuDNN's: without it a captured step of 7 billion parameters at 1,024
tokens took 1.21 times as long on that GPU, with 32 rows 1.40 times.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Within:
    """How many calls are within, and what holds again when the last one ends."""

    lock, count, was_on = threading.Lock(), 0, True


@contextmanager
def without_cudnn() -> Iterator[None]:
    """Let torch choose among the other kernels; what the process had chosen holds again afterwards.

    For the calls within, on this and every thread; several may be within. A graph keeps the kernels it was captured
    with.
    """
    cuda = torch.backends.cuda
    with Within.lock:
        if Within.count == 0:
            Within.was_on = cuda.cudnn_sdp_enabled()
            cuda.enable_cudnn_sdp(enabled=False)
        Within.count += 1
    try:
        yield
    finally:
        with Within.lock:
            Within.count -= 1
            if Within.count == 0:
                cuda.enable_cudnn_sdp(enabled=Within.was_on)
