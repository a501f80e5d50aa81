"""How the steps of decoding are run, and how files say it. No torch."""

from collections.abc import Mapping
from typing import Any, Literal

How = Literal["eager", "compiled", "captured"]  # by transformers, by torch.compile, by CUDA graphs of the eager steps


def flags_of(how: How) -> dict[str, bool]:
    return {"compiled": how == "compiled", "captured": how == "captured"}


def how_of(flags: Mapping[str, Any]) -> How:
    """What a file holds; older ones knew no captured steps."""
    if flags["compiled"]:
        return "compiled"
    return "captured" if flags.get("captured", False) else "eager"
