"""Prompt lookup (n-gram): drafting by copying what followed the last tokens where they occurred before. Pure; no torch.

It costs nothing, and pays on texts that repeat themselves, so every trained draft is compared with it.

Source: Saxena 2023, "Prompt Lookup Decoding" (github.com/apoorvumang/prompt-lookup-decoding); Yang et al. 2023,
"Inference with Reference" (arXiv 2304.04487). Implementations differ in which of several matches they take; here it is
the latest, of the longest match.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view


@dataclass(frozen=True)
class NgramLookup:
    """How matches are found.

    Attributes:
        longest: Tokens at the end of the sequence that are searched for first, >= 1; then one less, down to `shortest`.
        shortest: The shortest match.
    """

    longest: int = 3
    shortest: int = 1

    def continuation(self, token_ids: Sequence[int], count: int) -> list[int]:
        """Up to `count` tokens that may come next, none without a match.

        Args:
            token_ids: The sequence so far, prompt included.
            count: Tokens wanted.
        """
        ids_T = np.asarray(token_ids)
        for length in range(min(self.longest, len(ids_T) - 1), self.shortest - 1, -1):
            earlier = sliding_window_view(ids_T[:-1], length)  # the end itself is no match
            [starts] = np.nonzero((earlier == ids_T[-length:]).all(axis=1))
            if len(starts):
                after = int(starts[-1]) + length
                return ids_T[after : after + count].tolist()
        return []


@dataclass(frozen=True)
class LookupFirst:
    """Prompt lookup where the last `size_n` tokens occurred before, the draft everywhere else.

    As llama.cpp's `--spec-type ngram-simple,draft-simple`, whose two parameters these are. Which of the two drafts is
    known from the sequence before anything is drawn, so decoding stays lossless.

    Attributes:
        size_n: Tokens that must match.
        size_m: Tokens copied at most.
    """

    size_n: int = 12
    size_m: int = 48

    def continuation(self, token_ids: Sequence[int], limit: int) -> list[int]:
        """The tokens copied, at most `limit`; none where the draft proposes."""
        return NgramLookup(self.size_n, self.size_n).continuation(token_ids, min(self.size_m, limit))
