"""What is proposed in one round, row by row: by a draft, or by the text itself in its place.

What is looked up was not drawn: it is kept where it is what the target chooses there, whatever rule the draft's own
tokens are judged by. Which of the two proposes is known before a round draws anything, so both rules stay lossless.

Shape suffixes used in this file:
    B = rows, K = tokens proposed in a round, the longest row's; J = K + 1, V = vocabulary
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from eval.decoding.rules import EXACT_GREEDY_DRAFT, RULES, Draws, Proposal, Verdict


@dataclass(frozen=True)
class Turn:
    """One round's proposals.

    Attributes:
        drafted: The draft's, of rows whose text proposes nothing.
        lookups: What each text proposes, in the draft's place.
    """

    drafted: Proposal
    lookups: Sequence[Sequence[int]]

    @cached_property
    def looked_up_B(self) -> Tensor:  # noqa: N802  # the suffix of a shape
        """Which rows the text proposes for."""
        return torch.tensor([bool(ids) for ids in self.lookups], device=self.drafted.tokens_BK.device)

    @cached_property
    def proposal(self) -> Proposal:
        """Both together: their tokens, without what the draft's were drawn from."""
        if not any(self.lookups):
            return self.drafted
        rows_B = self.looked_up_B
        most = max(self.drafted.tokens_BK.shape[1], *map(len, self.lookups))
        filled = torch.tensor([[*ids, *[0] * (most - len(ids))] for ids in self.lookups], device=rows_B.device)
        drafted_BK = pad(self.drafted.tokens_BK, (0, most - self.drafted.tokens_BK.shape[1]))
        lengths_B = torch.tensor([len(ids) for ids in self.lookups], device=rows_B.device)
        return Proposal(filled.where(rows_B[:, None], drafted_BK), None, lengths_B.where(rows_B, self.drafted.counts_B))

    def judged(self, rule: str, target_BJV: Tensor, draws: Draws) -> Verdict:
        """How the round ends by a rule for what was drafted.

        Args:
            rule: One of eval.decoding.rules.RULES.
            target_BJV: p at every token of `proposal` and after the last.
            draws: Uniform numbers for as many.
        """
        if not any(self.lookups):
            return RULES[rule](target_BJV, self.drafted, draws)
        exact = RULES[EXACT_GREEDY_DRAFT](target_BJV, self.proposal, draws)
        if RULES[rule] is RULES[EXACT_GREEDY_DRAFT] or all(self.lookups):
            return exact
        width = self.drafted.tokens_BK.shape[1]
        own_draws = Draws(draws.accept_BK[:, :width], draws.target_BJ[:, : width + 1])
        own = RULES[rule](target_BJV[:, : width + 1], self.drafted, own_draws)
        rows_B = self.looked_up_B
        return Verdict(exact.accepted_B.where(rows_B, own.accepted_B), exact.next_B.where(rows_B, own.next_B))
