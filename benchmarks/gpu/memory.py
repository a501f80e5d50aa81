"""What one measurement held is given back before the next."""

import gc

import torch


def free_memory() -> None:
    """Let go of what nothing refers to, and of what torch keeps of it on the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
