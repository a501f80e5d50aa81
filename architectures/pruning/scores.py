"""What calibration text says about a target: computed once by architectures.importance, used for every shape.

Shape suffixes used in this file:
    L = layers, J = L + 1 positions of the residual stream (before each layer, and after the last), N = heads,
    F = neurons, H = channels
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Scores:
    """Named arrays. Higher means more worth keeping.

    block_influence_L: 1 - cos between a layer's input and output, mean over tokens.
    encoder_block_influence_L: The same of the blocks of an encoder, where there is one.
    removal_order: L - 1 layers, the one whose loss hurts least first, each chosen after the ones before it are gone.
    merge_order: L - 1 layers, in the order in which each is merged into its predecessors.
    <method>.neurons_LF, <method>.heads_LN, <method>.channels_H: for activation, flap and magnitude.
    mean_abs_JH, spread_JH: mean |x|, and mean of (x / rms(x))^2, of every channel of the residual stream.
    """

    arrays: "dict[str, NDArray[np.float64]]" = field(default_factory=dict)

    def need(self, name: str) -> "NDArray[np.float64]":
        """An array that the plan cannot be made without."""
        if name not in self.arrays:
            raise ValueError(f"no {name} among the scores: {', '.join(self.arrays) or 'none'}.")
        return self.arrays[name]

    def order(self, name: str) -> list[int]:
        """A stored order of layers."""
        return [int(layer) for layer in self.need(name)]
