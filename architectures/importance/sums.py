"""Sums over the batches of a pass, which go on where an interrupted pass left them."""

import json
from collections.abc import Hashable

import numpy as np
import torch
from torch import Tensor

from architectures.kept import Arrays, Kept

KEPT_NAME, BATCHES = "activations", "batches"  # of the sums so far, and of how many batches they are


class Sums(dict[Hashable, Tensor]):
    """Running sums by name."""

    def add(self, name: Hashable, value: Tensor) -> None:
        """Add to the sum of this name, which starts at zero."""
        self[name] = self[name] + value if name in self else value


def keep_sums(kept: Kept, num_read: int, sums: Sums) -> None:
    """Keep the sums over the first batches."""
    arrays: Arrays = {json.dumps(name): value.cpu().numpy() for name, value in sums.items()}
    kept.write(KEPT_NAME, {**arrays, BATCHES: np.array(num_read)})


def sums_so_far(kept: Kept, device: torch.device) -> tuple[int, Sums]:
    """How many batches were read, and the sums over them; none and nothing where a pass begins."""
    arrays = kept.read(KEPT_NAME)
    if arrays is None:
        return 0, Sums()
    num_read = int(arrays.pop(BATCHES))
    return num_read, Sums({name_of(key): torch.from_numpy(values).to(device) for key, values in arrays.items()})


def name_of(key: str) -> Hashable:
    """The name of a sum, from its JSON."""
    name = json.loads(key)
    return tuple(name) if isinstance(name, list) else name
