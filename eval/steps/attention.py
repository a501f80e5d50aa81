"""Attention whose shapes differ from call to call: not cuDNN's, which makes a plan for every shape it first meets.

On an NVIDIA H200 a training step took 0.35 s more wherever its width was new (torch 2.11, docs/gpu.md). Decoding and
the reading of single texts meet new widths all the time; training pads to few (distill/training/dataspec.py). Steps of
fixed shapes (eval/steps/fixed_steps.py) keep cuDNN's: without it a captured step of 7 billion parameters at 1,024
tokens took 1.21 times as long on that GPU, with 32 rows 1.40 times.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def without_cudnn() -> Iterator[None]:
    """Let torch choose among the other kernels; what the process had chosen holds again afterwards.

    For the calls within, on this and every thread. A graph keeps the kernels it was captured with.
    """
    cuda = torch.backends.cuda
    was_on = cuda.cudnn_sdp_enabled()
    cuda.enable_cudnn_sdp(enabled=False)
    try:
        yield
    finally:
        cuda.enable_cudnn_sdp(enabled=was_on)
