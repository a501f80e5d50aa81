"""Whether caches and packed weights fit: asked before anything is measured, not by a process killed an hour later."""

from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import PreTrainedModel

from architectures.errors import UserError
from architectures.shapes.context_length import context_length
from eval.latency.floor import dtype_name, shape_of
from eval.latency.steps import CHAIN_LENGTH
from eval.models.products import bytes_to_pack


def require_memory(models: Mapping[str, PreTrainedModel], *, batch: int, context: int) -> None:
    """Raise UserError unless every model was made for so long a text, and all caches and copies fit into memory.

    Args:
        models: By name, on one device.
        batch: Rows.
        context: Tokens in each row before a step.
    """
    problem = lack_of_memory(models, batch=batch, context=context)
    if problem is not None:
        raise UserError(f"--batch-sizes {batch} with --contexts {context}: {problem}")


def lack_of_memory(models: Mapping[str, PreTrainedModel], *, batch: int, context: int) -> str | None:
    """Why so many rows of so many tokens cannot be timed, and what can; None where they can."""
    for name, model in models.items():
        config = model.config.get_text_config(decoder=True).to_dict()
        limit = context_length(config, where=str(model.name_or_path))
        if limit is not None and context + CHAIN_LENGTH > limit.tokens:
            return (
                f"the {name} ({model.name_or_path}) was made for texts of {limit.tokens} tokens ({limit.origin}), "
                f"and steps go {CHAIN_LENGTH} tokens further. Use a shorter context."
            )
    [device] = {model.device for model in models.values()}
    caches = sum(cache_bytes(model, batch=batch, context=context) for model in models.values())
    packed = sum(bytes_to_pack(model) for model in models.values())
    free = free_bytes(device)
    if free is not None and caches + packed > free:
        copies = f"packed copies of weights {packed / 2**30:.1f} GiB, " if packed else ""
        return (
            f"the caches take {caches / 2**30:.1f} GiB, {copies}and {device} has {free / 2**30:.1f} GiB free. Use a "
            "smaller batch or a shorter context."
        )
    return None


def cache_bytes(model: PreTrainedModel, *, batch: int, context: int) -> int:
    """Bytes of the keys and values of some rows; 0 where only transformers knows the model's shape."""
    shape = shape_of(model)
    return 0 if shape is None else batch * (context + CHAIN_LENGTH) * shape.kv_bytes_per_token(dtype_name(model))


def free_bytes(device: torch.device, meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Memory that can still be taken; None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if not meminfo.is_file():
        return None
    lines = dict(line.split(":") for line in meminfo.read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024
