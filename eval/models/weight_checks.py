"""What is asked of weights when a checkpoint is opened: as many as config.json promises, and numbers all of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel

from architectures.errors import UserError
from architectures.targets.target import read_config

HIDDEN, LAYERS = ("hidden_size", "n_embd", "d_model"), ("num_hidden_layers", "n_layer", "num_layers", "decoder_layers")
NEURONS = ("intermediate_size", "ffn_dim", "d_ff", "n_inner")
WHOLE = ("I", "U", "BOOL")  # how safetensors' codes of types without fractions begin
LEAST_BYTES = 0.5  # of a parameter: four bits


def require_enough_bytes(folder: Path) -> None:
    """Raise UserError if the weight files are too small for the least that config.json promises.

    Transformers would first make such a model, or fill the memory with it.
    """
    promised = least_parameters(read_config(folder))
    num_bytes = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if num_bytes and promised * LEAST_BYTES > num_bytes:
        raise UserError(
            f"{folder}: config.json promises at least {promised:,} parameters, but the weight files have {num_bytes:,} "
            "bytes. Take config.json and weights from the same checkpoint."
        )


def least_parameters(config: Mapping[str, Any]) -> int:
    """Parameters of the embedding and of one feed-forward matrix a layer, which every family has."""
    hidden, layers = first(config, HIDDEN), first(config, LAYERS)
    return hidden * (config.get("vocab_size", 0) + layers * (first(config, NEURONS) or hidden))


def first(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """The size that stands under one of several names; 0 where none does."""
    return next((config[name] for name in names if config.get(name) is not None), 0)


def refuse_whole_numbers(folder: Path, model: PreTrainedModel) -> None:
    """Raise UserError naming the first tensor that is stored in whole numbers, which transformers takes for weights."""
    weights = {name for name, parameter in model.named_parameters() if parameter.is_floating_point()}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as reader:
            stored = {name: reader.get_slice(name).get_dtype() for name in reader.keys()}  # noqa: SIM118 - not a dict
        for name, code in stored.items():
            if code.startswith(WHOLE) and any(weight == name or weight.endswith(f".{name}") for weight in weights):
                raise UserError(
                    f"{file}: {name} has dtype {code}, which is no type of weights. A quantised checkpoint must be "
                    "de-quantised first; else copy or download it again."
                )


@torch.inference_mode()
def refuse_not_finite(folder: Path, model: PreTrainedModel) -> None:
    """Raise UserError naming the first tensor with an entry that is NaN or infinite.

    One reading of the weights (docs/pruning.md has the time); the device is waited for once.
    """
    tensors = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.is_floating_point() and parameter.numel()
    }
    if not tensors:
        return
    extremes_N2 = torch.stack([torch.stack(tensor.aminmax()).float() for tensor in tensors.values()])
    finite_N = extremes_N2.isfinite().all(dim=1)
    if not finite_N.all():
        name = list(tensors)[int(finite_N.int().argmin())]
        refuse_not_finite_tensor(str(folder), name, tensors[name])


def refuse_not_finite_tensor(where: str, name: str, tensor: Tensor) -> None:
    """Raise UserError if a tensor has an entry that is NaN or infinite, as read into the model's number type."""
    if not tensor.numel() or torch.stack(tensor.aminmax()).isfinite().all():
        return
    raise UserError(
        f"{where}: {name} holds NaN or infinity in {str(tensor.dtype).removeprefix('torch.')}. The model "
        "could not speak: copy or download it again, or load it in a number type that holds its weights."
    )
