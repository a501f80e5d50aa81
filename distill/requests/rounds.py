"""The rounds in which an answer that is there already would have been written with a draft. No torch.

Shape suffixes used in this file:
    T = tokens of the answer
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ReplayedRounds:
    """Rounds along an answer.

    Attributes:
        starts: Token of the answer with which each begins.
        proposed: Tokens each proposes: the lookahead, or what is left of the answer but one.
        kept: How many of them stay.
    """

    starts: tuple[int, ...]
    proposed: tuple[int, ...]
    kept: tuple[int, ...]

    @property
    def mistakes(self) -> tuple[int, ...]:
        """Tokens of the answer that stand where another was proposed."""
        rounds = zip(self.starts, self.proposed, self.kept, strict=True)
        return tuple(start + kept for start, proposed, kept in rounds if kept < proposed)


def rounds_along(keeps_T: Sequence[bool], *, lookahead: int) -> ReplayedRounds:
    """The rounds of an answer, of which each token comes from the draft wherever it is proposed and kept.

    Args:
        keeps_T: Whether a proposal for each token would be kept.
        lookahead: Tokens a round proposes; the last token of an answer is the target's own.
    """
    starts, proposed, kept, start = [], [], [], 0
    while start < len(keeps_T):
        most = min(lookahead, len(keeps_T) - start - 1)
        run = next((k for k in range(most) if not keeps_T[start + k]), most)
        starts.append(start)
        proposed.append(most)
        kept.append(run)
        start += run + 1
    return ReplayedRounds(tuple(starts), tuple(proposed), tuple(kept))
