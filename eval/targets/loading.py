"""A target as it is asked to be held."""

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from architectures.settings.holding import WHOLE, Holding
from eval.models.loading import default_device, load_model
from eval.targets.shell import load_layered
from eval.targets.spread import load_spread


def held_facts(holding: Holding) -> dict[str, Any]:
    """What a scorecard says of how its target was held; nothing of one that is whole, as it is."""
    placed = {} if holding.placement == "whole" else {"placement": holding.placement}
    return placed | holding.claimed


def load_target(
    folder: Path, *, dtype: str, holding: Holding = WHOLE, device: str | None = None, encoder_decoder: bool = False
) -> PreTrainedModel:
    """The model of a target's folder, in eval mode.

    Args:
        folder: A local Hugging Face folder.
        dtype: A floating torch dtype by name: "float32", "bfloat16" or "float16".
        holding: Where its weights are.
        device: A torch device; None takes "cuda" where there is one, else "cpu".
        encoder_decoder: Of one that is whole: whether it may be an encoder-decoder model of any family.

    Raises:
        UserError: As eval.models.loading.load_model; or if the memory that it may take is too little.
    """
    if holding.placement == "layers":
        return load_layered(folder, dtype=dtype, device=device or default_device(), holding=holding)
    if holding.placement == "spread":
        return load_spread(folder, dtype=dtype, holding=holding)
    return load_model(folder, dtype=dtype, device=device, bits=holding.bits, encoder_decoder=encoder_decoder)
