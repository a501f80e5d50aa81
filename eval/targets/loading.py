"""A target as it is held: whole on one device, spread over several by accelerate, or read layer by layer."""

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
from architectures.settings.holding import WHOLE, Holding
from architectures.shapes.shape import Shape
from architectures.targets.target import read_config
from eval.models.loading import default_device, load_model, refuse_not_finite_tensor
from eval.targets.layer_memory import KEY, layer_memory
from eval.targets.shell import load_layered


def held_facts(holding: Holding) -> dict[str, Any]:
    """What a scorecard says of how its target was held; nothing of one that is whole, as it is."""
    placed = {} if holding.placement == "whole" else {"placement": holding.placement}
    return placed | holding.claimed


def load_target(
    folder: Path, *, dtype: str, holding: Holding = WHOLE, device: str | None = None, encoder_decoder: bool = False
) -> PreTrainedModel:
    """The model of a target's folder, in eval mode.

    Args:
        folder: A local Hugging Face folder.
        dtype: A floating torch dtype by name: "float32", "bfloat16" or "float16".
        holding: Where its weights are.
        device: A torch device; None takes "cuda" where there is one, else "cpu".
        encoder_decoder: Of one that is whole: whether it may be an encoder-decoder model of any family.

    Raises:
        UserError: As eval.models.loading.load_model; or if the memory that it may take is too little.
    """
    if holding.placement == "layers":
        return load_layered(folder, dtype=dtype, device=device or default_device(), holding=holding)
    if holding.placement == "spread":
        return load_spread(folder, dtype=dtype, holding=holding)
    return load_model(folder, dtype=dtype, device=device, bits=holding.bits, encoder_decoder=encoder_decoder)


def load_spread(folder: Path, *, dtype: str, holding: Holding) -> PreTrainedModel:
    """The model of a checkpoint folder over the GPUs of the machine, its memory and its disk, by its device_map.

    Layers run where they are; those in memory or on the disk are brought to a GPU, or to the CPU, each time they run.

    Raises:
        UserError: If there are several processes, its family is unknown, or a cap is smaller than a layer.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1:
        raise UserError(
            f"target.placement is spread, and there are {processes} processes: each would take all of the machine's "
            "devices. Start one process, or set target.placement to layers, of which each process has its own."
        )

    # The device that computes may take what the recipe says, and must hold the largest layer whole.
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    computing: list[int | str] = [*range(num_gpus)] if num_gpus else ["cpu"]
    memory: dict[Any, int] = dict(get_max_memory())
    if holding.device_memory_gib is not None:
        memory |= dict.fromkeys(computing, int(holding.device_memory_gib * 2**30))
    shape = Shape.from_config(read_config(folder), where=str(folder / "config.json"))
    needed, allowed = layer_memory(shape, dtype), min(memory[name] for name in computing)
    if needed.largest_bytes > allowed:
        raise UserError(
            f"{folder}: {needed.largest} has {size(needed.largest_bytes).strip()} in {dtype}, and must lie whole where "
            f"it is computed, which may take {size(allowed).strip()}. Raise {KEY}, or take a machine with more memory."
        )

    # Every tensor is read once: those on the disk are not looked at when the model is loaded.
    weights = open_weights(folder)
    for name in weights.info:
        tensor = weights.read(name).to(getattr(torch, dtype))
        refuse_not_finite_tensor(str(weights.files[name]), name, tensor)

    offload = TemporaryDirectory(prefix="widedraft-offload-")  # for tensors that are stored in another dtype
    placing = {"device_map": "auto", "max_memory": memory, "offload_folder": offload.name}
    model = load_model(folder, dtype=dtype, placing=placing)
    finalize(model, offload.cleanup)
    if model.device.type == "meta":
        raise UserError(
            f"{folder}: its embedding would be on the disk, as a device may take {size(allowed).strip()}. Raise {KEY}, "
            "or set target.placement to layers."
        )
    return model
