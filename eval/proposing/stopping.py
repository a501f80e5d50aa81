"""When a draft proposes no more in a round: told by its own doubt, before anything is drawn. Pure; no torch.

A draft's step is cheap where it is shallow, and verifying what it proposes is not. So its own doubt may end a round.
What it finds likeliest has a probability, its confidence, that is known from the tokens before; so where a round ends
is known before the token there is drawn, and every rule stays lossless. Three ways to end are in use:

    before doubt    nothing from the token on of which the draft is less sure than `confidence`: llama.cpp's p-min
    after doubt     that token is the round's last: transformers' assistant_confidence_threshold, of greedy drafts
    expected gain   nothing from the token on that would be kept, with all before it, with a chance below `chance`, by
                    the draft's own confidences: a token is worth its step for as long as that chance, times what a
                    token of the target takes, is above what drafting and verifying it takes

Source: Mamou et al. 2024, "Dynamic Speculation Lookahead Accelerates Speculative Decoding of Large Language Models"
(arXiv 2405.04304), compare the first with constant lookaheads; Huang et al. 2024, "SpecDec++" (arXiv 2405.19715), end
by the chance that a proposed token is not kept. The product of confidences in place of a trained head is ours.

Shape suffixes used in this file:
    T = positions, K = tokens proposed from each at most
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Stopping:
    """How much doubt ends a round.

    Attributes:
        confidence: Least of the draft's confidence at each token, in [0, 1]; 0 for any.
        chance: Least product of the round's confidences up to a token, in [0, 1]; 0 for any.
        proposes_doubted: Whether the first token of doubt is proposed too.
    """

    confidence: float = 0.0
    chance: float = 0.0
    proposes_doubted: bool = False

    def __post_init__(self) -> None:
        for name in ("confidence", "chance"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name):g}.")
        if self.proposes_doubted and not self.is_on:
            raise ValueError("the token of doubt is proposed where a draft may doubt: give a confidence or a chance.")

    @property
    def is_on(self) -> bool:
        """Whether a round may end early."""
        return self.confidence > 0 or self.chance > 0

    def is_sure(self, confidence: float, chance: float) -> bool:
        """Whether a draft proposes a token of such confidence, with such a product up to it."""
        return confidence >= self.confidence and chance >= self.chance

    def proposed(self, confidence_TK: NDArray[Any]) -> NDArray[np.bool_]:
        """proposed_TK: which tokens of a round from each position are proposed, by the confidences along it."""
        chance_TK = confidence_TK.cumprod(axis=1)
        sure_TK = (confidence_TK >= self.confidence) & (chance_TK >= self.chance)
        if self.proposes_doubted:
            sure_TK = np.roll(sure_TK, 1, axis=1)
            sure_TK[:, 0] = True
        return sure_TK.cumprod(axis=1).astype(bool)


NEVER_STOPS = Stopping()
