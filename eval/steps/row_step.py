"""One step of a model over rows of different lengths: where their tokens stand, and which slots of the cache they see.

Shape suffixes used in this file:
    B = rows, T = tokens fed to the longest row, S = slots, V = vocabulary
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from architectures.families import FAMILIES
from eval.steps.cache import CACHE_ARGUMENT
from eval.steps.row_cache import RowCache

Span = tuple[int, int]  # the position of a row's first token among those fed, and how many tokens it is fed
WINDOWED = "sliding_attention"


def forward(
    model: PreTrainedModel,
    ids_BT: Tensor,
    positions_BT: Tensor,
    cache: RowCache,
    sight: "Sight",
    *,
    width: int,
    whole: bool,
) -> Tensor:
    """Logits of tokens at positions of their rows, -1 for filling; `width` slots of the cache are looked at."""
    cache.write_at(positions_BT.masked_fill(positions_BT < 0, cache.capacity), width=width)
    positions_BT = positions_BT.clamp(min=0)
    output = model(
        input_ids=ids_BT,
        attention_mask=sight.masks(positions_BT, width),
        position_ids=positions_BT,
        use_cache=True,
        logits_to_keep=0 if whole else 1,
        **{CACHE_ARGUMENT: cache},  # all that a model asks of a Cache
    )
    return output.logits


def positions_of(spans: Sequence[Span], width: int, *, left: bool) -> Tensor:
    """positions_BT of the tokens fed, -1 for filling.

    Args:
        spans: Of each row.
        width: Tokens of the longest row.
        left: Whether tokens stand on the left and filling on the right.
    """
    steps_T = torch.arange(width)
    starts_B1 = torch.tensor([[start] for start, _ in spans])
    if all(count == width for _, count in spans):
        return starts_B1 + steps_T  # as at nearly every step: the rest takes longer than all else here
    counts_B1 = torch.tensor([[count] for _, count in spans])
    steps_BT = steps_T[None] if left else steps_T[None] - (width - counts_B1)
    return (starts_B1 + steps_BT).where((steps_BT >= 0) & (steps_BT < counts_B1), -1)


@dataclass(frozen=True)
class Sight:
    """Which slots a model's tokens look at.

    Attributes:
        window: Tokens a layer with a sliding window sees, itself included; None without one.
        kinds: Kinds of layer where the model asks for a mask of each, else empty.
        added: The number type of masks that are added, as transformers' own attention takes them; None for booleans.
    """

    window: int | None
    kinds: tuple[str, ...]
    added: torch.dtype | None

    @classmethod
    def of(cls, model: PreTrainedModel) -> "Sight":
        """What a model's config says."""
        config = model.config.get_text_config(decoder=True)
        eager = config._attn_implementation == "eager"  # noqa: SLF001  # there is no other way to know
        family = FAMILIES.get(config.model_type)
        kinds = tuple(sorted(set(config.layer_types))) if family is not None and family.mask_per_kind else ()
        return cls(getattr(config, "sliding_window", None), kinds, model.dtype if eager else None)

    def masks(self, positions_BT: Tensor, width: int) -> Any:
        """A mask [B, 1, T, S] over the first `width` slots, or one for each kind of layer."""
        slots_S = torch.arange(width, device=positions_BT.device)
        seen_BTS = slots_S <= positions_BT[:, :, None]
        near_BTS = seen_BTS if self.window is None else seen_BTS & (slots_S > positions_BT[:, :, None] - self.window)
        if not self.kinds:
            return self.as_attention_takes_it(near_BTS)
        return {kind: self.as_attention_takes_it(near_BTS if kind == WINDOWED else seen_BTS) for kind in self.kinds}

    def as_attention_takes_it(self, seen_BTS: Tensor) -> Tensor:
        """Booleans, or numbers to add."""
        if self.added is None:
            return seen_BTS[:, None]
        lowest = torch.finfo(self.added).min
        return torch.zeros_like(seen_BTS, dtype=self.added).masked_fill(~seen_BTS, lowest)[:, None]
