"""What calibration text says about a target: computed once by `architectures.importance`, used for every shape.

Shape suffixes used in this file:
    L = layers, J = L + 1 places of the residual stream (before each layer, and after the last), N = heads,
    F = neurons, H = channels
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors.numpy import load_file, save

SCORES_NAME = "scores.safetensors"


@dataclass(frozen=True)
class Scores:
    """Named arrays. Higher means more worth keeping.

    block_influence_L: 1 - cos between a layer's input and output, mean over tokens.
    removal_order: L - 1 layers, the one whose loss hurts least first, each chosen after the ones before it are gone.
    merge_order: L - 1 layers, in the order in which each is merged into its predecessors.
    <method>.neurons_LF, <method>.heads_LN, <method>.channels_H: for activation, flap and magnitude.
    mean_abs_JH, spread_JH: mean |x|, and mean of (x / rms(x))^2, of every channel of the residual stream.
    """

    arrays: dict[str, NDArray[np.float64]] = field(default_factory=dict)

    def need(self, name: str) -> NDArray[np.float64]:
        """An array that the plan cannot be made without."""
        if name not in self.arrays:
            raise ValueError(f"no {name} among the scores: {', '.join(self.arrays) or 'none'}.")
        return self.arrays[name]

    def order(self, name: str) -> list[int]:
        """A stored order of layers."""
        return [int(layer) for layer in self.need(name)]


def save_scores(file: Path, arrays: Mapping[str, ArrayLike]) -> None:
    """Write scores for load_scores, in float64; the file appears whole or not at all."""
    stored = save({name: np.ascontiguousarray(values, dtype=np.float64) for name, values in arrays.items()})
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.partial")
    try:
        with partial.open("wb") as writer:
            writer.write(stored)
            writer.flush()
            os.fsync(writer.fileno())
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def load_scores(file: Path) -> Scores:
    """The scores that save_scores wrote."""
    return Scores({name: array.astype(np.float64) for name, array in load_file(file).items()})
