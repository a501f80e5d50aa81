"""The weights of a draft that change while it learns: copied, put back, and handed to the process that serves."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.optim import Optimizer

from architectures.files.atomic import write_bytes


def trained_weights(model: nn.Module) -> dict[str, Tensor]:
    """What a training moves, by name; no copy."""
    return {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}


@torch.no_grad()
def put_back(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Overwrite weights by name, in the number type and on the device that they have there."""
    own = dict(model.named_parameters())
    for name, weight in weights.items():
        own[name].copy_(weight)


def write_weights(model: nn.Module, path: Path) -> None:
    """Hand over what a training moves: a file, whole or absent."""
    write_bytes(save({name: weight.cpu().contiguous() for name, weight in trained_weights(model).items()}), path)


def read_weights(model: nn.Module, path: Path) -> None:
    """Take over what was handed over."""
    put_back(model, load_file(path))


@dataclass(frozen=True)
class Snapshot:
    """A draft and its optimiser as they were after so many updates, on the processor.

    Attributes:
        updates: That the draft had had.
        weights: Those that are trained.
        optimizer: Its whole state.
    """

    updates: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Any]

    @classmethod
    def of(cls, model: nn.Module, optimizer: Optimizer, *, updates: int) -> "Snapshot":
        """A copy."""
        weights = {name: weight.to("cpu", copy=True) for name, weight in trained_weights(model).items()}
        return cls(updates, weights, deepcopy(optimizer.state_dict()))

    def restore(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Put both back; the learning rate stays where its schedule has come to."""
        rates = [group["lr"] for group in optimizer.param_groups]
        put_back(model, self.weights)
        optimizer.load_state_dict(deepcopy(self.optimizer))
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
