"""Texts of one row kept apart, also where transformers does not see from positions that a row holds several.

Shape suffixes used in this file:
    R = rows, W = slots per row, N = query heads
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.importance.activation_scores import removable

SEPARATING_ATTENTION = ("sdpa", "eager")  # of transformers, which take a mask


@contextmanager
def texts_apart(lm: PreTrainedModel, positions_RW: Tensor) -> Iterator[None]:
    """While the block runs, no text of a row sees another. Give the model the positions all the same.

    OPT and BLOOM make their masks without positions, and BLOOM's attention goes by distances along the row: their
    layers are handed a mask, and distances along each text, in place of what the model made.

    Args:
        lm: A causal language model of a known family.
        positions_RW: Of tokens in their texts; each text begins with a 0.

    Raises:
        UserError: If its attention implementation takes no mask.
    """
    family = FAMILIES[lm.config.model_type]
    refuse_attention(str(lm.config._attn_implementation), where=str(lm.config.name_or_path))  # noqa: SLF001  # it has no other name
    if family.texts_apart == "positions":
        yield
        return
    sees_R1WW = seen_within_texts(positions_RW)
    bias = distance_bias(lm, positions_RW) if family.texts_apart == "mask_and_bias" else None
    takes_bool = lm.config._attn_implementation == "sdpa"  # noqa: SLF001

    def hand_over(
        _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        mask = sees_R1WW if takes_bool else as_summand(sees_R1WW, args[0].dtype)
        biases = {} if bias is None else {"alibi": bias.to(kwargs["alibi"].dtype)}
        return args, {**kwargs, "attention_mask": mask, **biases}

    with ExitStack() as hooks:
        for layer in range(lm.config.num_hidden_layers):
            module = lm.get_submodule(f"{family.layer_prefix}{layer}")
            hooks.enter_context(removable(module.register_forward_pre_hook(hand_over, with_kwargs=True)))
        yield


def seen_within_texts(positions_RW: Tensor) -> Tensor:
    """sees_R1WW: whether a token sees another, which is of its own text and not behind it."""
    texts_RW = (positions_RW == 0).cumsum(dim=1)
    return (texts_RW[:, :, None] == texts_RW[:, None, :]).tril()[:, None]


def as_summand(sees_R1WW: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to attention scores: 0 where a token sees another, else the smallest number there is."""
    return torch.zeros_like(sees_R1WW, dtype=dtype).masked_fill(~sees_R1WW, torch.finfo(dtype).min)


def distance_bias(lm: Any, positions_RW: Tensor) -> Tensor:
    """BLOOM's attention bias, float32 [R x N, 1, W], as a text alone in its row has it."""
    rows, width = positions_RW.shape
    whole_row = torch.ones(1, width, device=positions_RW.device)
    bias_NW = lm.base_model.build_alibi_tensor(whole_row, lm.config.n_head, torch.float32)[:, 0]
    return bias_NW[:, positions_RW].transpose(0, 1).reshape(rows * len(bias_NW), 1, width)


def refuse_attention(implementation: str, *, where: str) -> None:
    """Raise UserError if an attention implementation of transformers does not separate texts in several rows.

    Its FlashAttention looks at positions only where all texts lie in one row.
    """
    if implementation not in SEPARATING_ATTENTION:
        raise UserError(
            f"{where}: its attn_implementation is {implementation!r}, which lets the texts of one row see each other. "
            f"Have config.json name one of {', '.join(SEPARATING_ATTENTION)}, or set distill.packing to false."
        )
