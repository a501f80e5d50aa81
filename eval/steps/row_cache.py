"""Keys and values of several texts at once, each row with a length of its own, in tensors with capacity for more.

A token is written at its position in its row. Nothing is ever cut off: what stands behind a row's last token is written
over later, and until then no token looks there, since it looks at its own position and before only. Taking back
rejected tokens is therefore no work at all, and rows of one batch need not agree on how many they keep.

Shape suffixes used in this file:
    B = rows, H = key/value heads, T = tokens fed, S = slots, D = head dimension
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad


class RowCache:
    """What a decoder-only model of transformers takes as past_key_values, together with positions and a mask.

    Args:
        capacity: Tokens a row can hold, until it is widened. One slot more takes what only fills a batch's gaps.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.slots_BT = torch.empty(0)
        self.slots_BHTD: Tensor | None = None  # the same for every number, made by the first layer of a step for all
        self.width = 0

    def write_at(self, slots_BT: Tensor, *, width: int) -> None:
        """Say where the next tokens go, and that the first `width` slots are to be looked at."""
        self.slots_BT, self.width = slots_BT, width
        self.slots_BHTD = None

    def update(
        self, keys_BHTD: Tensor, values_BHTD: Tensor, layer_idx: int, *_args: object, **_kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Called by every layer: writes the keys and values of the tokens fed; returns those to attend to."""
        if layer_idx == len(self.keys):
            self.keys.append(self.capacity_for(keys_BHTD))
            self.values.append(self.capacity_for(values_BHTD))
        if self.slots_BHTD is None:
            self.slots_BHTD = self.slots_BT[:, None, :, None].expand_as(keys_BHTD)
        for cache_BHSD, new_BHTD in ((self.keys[layer_idx], keys_BHTD), (self.values[layer_idx], values_BHTD)):
            cache_BHSD.scatter_(2, self.slots_BHTD, new_BHTD)
        return self.keys[layer_idx][:, :, : self.width], self.values[layer_idx][:, :, : self.width]

    def capacity_for(self, new_BHTD: Tensor) -> Tensor:
        """Zeros, for a slot that is not looked at must still be a number."""
        rows, heads, _, head_dim = new_BHTD.shape
        return new_BHTD.new_zeros(rows, heads, self.capacity + 1, head_dim)

    def get_seq_length(self, _layer_idx: int = 0) -> int:
        """Asked by models that were given no positions; these are always given."""
        raise AssertionError("the lengths of the rows differ: give position_ids and a mask")

    def widen(self, capacity: int) -> None:
        """Raise the capacity to rows of so many tokens."""
        missing, self.capacity = capacity - self.capacity, capacity
        self.replace(lambda cache_BHSD: pad(cache_BHSD, (0, 0, 0, missing)))

    def keep(self, rows: Sequence[int]) -> None:
        """Let go of every row but the given ones."""
        rows_B = torch.tensor(rows, device=self.slots_BT.device)
        self.replace(lambda cache_BHSD: cache_BHSD[rows_B])

    def replace(self, change: Callable[[Tensor], Tensor]) -> None:
        """Change every tensor, one after another: there may be no memory for two of each."""
        for caches in (self.keys, self.values):
            for layer_idx, cache_BHSD in enumerate(caches):
                caches[layer_idx] = change(cache_BHSD)
