"""A target that is not whole on one device, as the scores of its parts are computed from it."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from architectures.checkpoints.weights import Weights, open_weights
from architectures.families import FAMILIES
from architectures.families.family import Family
from architectures.importance.activation_scores import Access, Reading, Watch, watching_bytes
from eval.targets.layered import held_otherwise, layers_of
from eval.targets.passes import Pass, run_passes


def access_to(model: PreTrainedModel, folder: Path) -> Access | None:
    """How texts are read and weights are had of a target; None of one that is whole.

    Args:
        model: From eval.targets.loading.load_target; its weights are not packed.
        folder: It was loaded from.
    """
    if held_otherwise(model) is None:
        return None
    family = FAMILIES[model.config.model_type]
    weights = open_weights(folder, base_prefix=family.base_prefix)
    weight_of = partial(stored, weights, family, model.dtype, model.device)
    return Access(weight_of, None if layers_of(model) is None else read_in_layers)


def stored(weights: Weights, family: Family, dtype: torch.dtype, device: torch.device, name: str) -> Tensor:
    """A parameter as the model would compute with it, from the disk."""
    module, _, kind = name.rpartition(".")
    tensor = weights.read(f"{family.renamed_modules.get(module, module)}.{kind}")
    return tensor.to(dtype).to(device)


def read_in_layers(watch: Watch, readings: Sequence[Reading]) -> Iterator[None]:
    """Have all texts read by one layer, then by the next."""
    item, beside = watch.model.dtype.itemsize, watching_bytes(watch.shape)
    passes = [
        Pass(
            partial(watch.read, reading),
            *reading.ids_BT.shape,
            work_bytes=reading.ids_BT.numel() * beside,
            kept_bytes=reading.ids_BT.numel() * watch.shape.hidden * item,
        )
        for reading in readings
    ]
    return run_passes(watch.model, passes)
