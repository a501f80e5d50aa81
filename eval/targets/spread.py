"""A target whose layers are spread over the GPUs of a machine, its memory and its disk, by accelerate.

Layers run where they are; those in memory or on the disk are brought to a GPU, or to the processor, each time they run.
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from weakref import finalize

import torch
from accelerate.utils import get_max_memory
from transformers import PreTrainedModel

from architectures.checkpoints.weights import open_weights
from architectures.errors import UserError
from architectures.files.disk import size
from architectures.settings.holding import Holding
from architectures.shapes.shape import Shape
from architectures.targets.target import read_config
from eval.models.loading import load_model
from eval.models.weight_checks import refuse_not_finite_tensor
from eval.targets.layer_memory import layer_memory

GIB = 2**30
DEVICE, HOST = "target.device_memory_gib", "target.host_memory_gib"


def load_spread(folder: Path, *, dtype: str, holding: Holding) -> PreTrainedModel:
    """The model of a checkpoint folder, its layers where memory is.

    Raises:
        UserError: If there are several processes, its family is unknown, or a cap is smaller than a layer.
    """
    refuse_processes()
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    memory = memory_of(holding, num_gpus)
    shape = Shape.from_config(read_config(folder), where=str(folder / "config.json"))
    refuse_small_memory(folder, shape, dtype, memory)
    refuse_not_finite_files(folder, dtype)
    offload = TemporaryDirectory(prefix="widedraft-offload-")  # for what is not stored as it is computed with
    placing = {"device_map": "auto", "max_memory": memory, "offload_folder": offload.name}
    model = load_model(folder, dtype=dtype, placing=placing)
    finalize(model, offload.cleanup)
    if model.device.type == "meta":
        raise UserError(
            f"{folder}: its embedding would be on the disk: {words_of(memory)}. Raise {DEVICE}, or set "
            "target.placement to layers."
        )
    return model


def refuse_processes() -> None:
    """Raise UserError where another process beside this one would spread its own copy over the same devices."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1:
        raise UserError(
            f"target.placement is spread, and there are {processes} processes: each would take all of the machine's "
            "devices. Start one process, or set target.placement to layers, of which each process has its own."
        )


def memory_of(holding: Holding, num_gpus: int) -> dict[int | str, int]:
    """Bytes that may be taken, by device as accelerate names them.

    Raises:
        UserError: If there is no GPU, so that the memory of the host is that of the device.
    """
    device, host = holding.device_memory_gib, holding.host_memory_gib
    if num_gpus == 0 and host is not None:
        raise UserError(
            f"{HOST} is {host:g} and there is no GPU: the processor computes, whose memory is {DEVICE}. Set that one."
        )
    memory: dict[Any, int] = dict(get_max_memory())
    computing = range(num_gpus) if num_gpus else ("cpu",)
    caps = {"cpu": host} if num_gpus and host is not None else {}
    caps |= {} if device is None else dict.fromkeys(computing, device)
    return memory | {name: int(cap * GIB) for name, cap in caps.items()}


def refuse_small_memory(folder: Path, shape: Shape, dtype: str, memory: dict[int | str, int]) -> None:
    """Raise UserError if a device that computes has no memory for the largest part of the model."""
    needed = layer_memory(shape, dtype)
    least = min(memory.get(name, 0) for name in memory if name != "cpu" or len(memory) == 1)
    if needed.largest_bytes > least:
        raise UserError(
            f"{folder}: {needed.largest} has {size(needed.largest_bytes).strip()} in {dtype}, and must lie whole where "
            f"it is computed; but {words_of(memory)}. Raise {DEVICE}, or take a machine with more memory."
        )


def words_of(memory: dict[int | str, int]) -> str:
    """What may be taken, for people."""
    names = {name: "the processor" if name == "cpu" else f"GPU {name}" for name in memory}
    return " and ".join(f"{names[name]} may take {size(num_bytes).strip()}" for name, num_bytes in memory.items())


def refuse_not_finite_files(folder: Path, dtype: str) -> None:
    """Read every tensor once: what is on the disk is not looked at when the model is loaded."""
    weights = open_weights(folder)
    for name in weights.info:
        tensor = weights.read(name).to(getattr(torch, dtype))
        refuse_not_finite_tensor(str(weights.files[name]), name, tensor)
