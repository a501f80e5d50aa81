"""A draft without a model: what followed the last tokens of a text where they stood before. Pure; no torch.

It costs nothing, and pays on texts that repeat themselves, so every draft that was trained has it to beat.

Source: Saxena 2023, "Prompt Lookup Decoding" (github.com/apoorvumang/prompt-lookup-decoding); Yang et al. 2023,
"Inference with Reference" (arXiv 2304.04487). Implementations differ in which of several matches they take; here it is
the latest, of the longest run of tokens that stands anywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view


@dataclass(frozen=True)
class NgramLookup:
    """How matches are found.

    Attributes:
        longest: Tokens at the end of the text that are looked for first, >= 1; then one less, down to one.
    """

    longest: int = 3

    def __post_init__(self) -> None:
        if self.longest < 1:
            raise ValueError(f"longest must be at least 1, got {self.longest}.")

    def continuation(self, token_ids: Sequence[int], count: int) -> list[int]:
        """Tokens that may come next: at most so many, and none where even the last token is new.

        Args:
            token_ids: The text so far, prompt and all.
            count: Tokens wanted.
        """
        ids_T = np.asarray(token_ids)
        for length in range(min(self.longest, len(ids_T) - 1), 0, -1):
            earlier = sliding_window_view(ids_T[:-1], length)  # the end itself is no match
            [starts] = np.nonzero((earlier == ids_T[-length:]).all(axis=1))
            if len(starts):
                after = int(starts[-1]) + length
                return ids_T[after : after + count].tolist()
        return []
