"""What to decode, and the random numbers it takes.

Shape suffixes used in this file:
    B = rows, D = draws
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eval.decoding.ngram import LookupFirst, NgramLookup
from eval.decoding.rules import EXACT_GREEDY_DRAFT
from eval.decoding.sampling import Sampling
from eval.decoding.texts import Limits, Seeds, Speculation, stream
from eval.steps.sequencer import Feed


@dataclass(frozen=True)
class Wanted:
    """What to decode.

    Attributes:
        prompts: Token ids, each at least one; of an encoder-decoder model its inputs.
        limits: When a text ends.
        sampling: How tokens are chosen, on both sides.
        speculation: How a draft is used; None without one.
        lookup: What proposes tokens in place of a model; None where a model does.
        lookup_first: Prompt lookup where it finds a match, the draft everywhere else; None for the draft everywhere.
        target_vocab: Where a draft writes alone, how many ids its target has: it says no other; None where it does not.
    """

    prompts: Sequence[Sequence[int]]
    limits: Limits
    sampling: Sampling
    speculation: Speculation | None = None
    lookup: NgramLookup | None = None
    lookup_first: LookupFirst | None = None
    target_vocab: int | None = None

    @property
    def rule(self) -> str | None:
        """How tokens are accepted; None without a draft.

        What is looked up was not drawn: it is kept where it is the target's own choice.
        """
        if self.speculation is None:
            return None
        drawn = self.lookup is None and not self.sampling.is_greedy
        return self.speculation.rule if drawn else EXACT_GREEDY_DRAFT

    @property
    def draft_p_min(self) -> float:
        """The draft's confidence below which it proposes no more."""
        return 0.0 if self.speculation is None else self.speculation.draft_p_min

    @property
    def feeds(self) -> tuple[Sequence[Feed], ...]:
        """What the target is fed again and again, and what the draft is; with a confidence threshold any number."""
        if self.speculation is None:
            return ([(1, False)],)
        widths = {self.speculation.lookahead + 1, self.speculation.most + 1}
        if self.draft_p_min > 0:
            widths |= set(range(1, self.speculation.lookahead + 1))
        return [(width, True) for width in sorted(widths)], [(1, False), (2, False)]

    @property
    def goes_back(self) -> bool:
        """Whether tokens are read that may be taken back."""
        return self.speculation is not None

    def __post_init__(self) -> None:
        if not all(self.prompts):
            raise ValueError("every prompt needs at least one token, got one of 0 prompt tokens.")
        if self.lookup_first is not None and (self.speculation is None or self.lookup is not None):
            raise ValueError("lookup_first needs a draft model for where nothing matches; there is none.")


@dataclass(frozen=True)
class Streams:
    """Uniform numbers for every token of every text: what a draft proposes, whether it is kept, what a target draws."""

    draft_BD: Tensor
    accept_BD: Tensor
    target_BD: Tensor

    @classmethod
    def of(cls, wanted: Wanted, seeds: Seeds, row_seeds: Sequence[int], device: torch.device) -> "Streams":
        """Each text's numbers depend on the stream's seed and its own alone."""
        most = wanted.speculation.most if wanted.speculation else 0
        count = wanted.limits.max_new_tokens + most + 1
        return cls(*(stream(seed, row_seeds, count, device) for seed in (seeds.draft, seeds.accept, seeds.target)))
