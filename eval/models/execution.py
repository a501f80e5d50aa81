"""How the steps of decoding are run, and how files say it. No torch."""

from typing import Literal

How = Literal["eager", "compiled", "captured"]  # by transformers, by torch.compile, by CUDA graphs of the eager steps


def flags_of(how: How) -> dict[str, bool]:
    return {"compiled": how == "compiled", "captured": how == "captured"}


def how_of(*, compiled: bool, captured: bool) -> How:
    if compiled:
        return "compiled"
    return "captured" if captured else "eager"
