"""Counts of speculative rounds, and the rates made from them. One counting function serves live loop and replay.

A text of num_tokens tokens is emitted in rounds. A round that starts when `start` tokens are out proposes at most
min(lookahead, num_tokens - start - 1) tokens and emits the accepted ones plus one of the target's own; so the last
token of a text (its stop token, if it has one) is always the target's and never counts as accepted.

Shape suffixes used in this file:
    T = tokens of one answer, K = position in a round (1..lookahead at index 0..lookahead-1), X = any sums before it
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from eval.acceptance.intervals import Array


@dataclass(frozen=True)
class Counts:
    """What happened in the rounds of one text, or of several pooled. Expected values where the rule is random.

    Attributes:
        rounds: Draft-then-verify cycles.
        possible: Per position k, the rounds in which the text had k tokens left to accept.
        reached: Of those, the rounds that accepted at least k - 1 tokens, so that position k was decided.
        accepted: Of those, the rounds that accepted at least k tokens.
    """

    rounds: float
    possible: tuple[float, ...]
    reached: tuple[float, ...]
    accepted: tuple[float, ...]

    @property
    def proposed_tokens(self) -> float:
        """Draft tokens proposed, kept or not, as far as the text had tokens left."""
        return sum(self.possible)

    @property
    def accepted_tokens(self) -> float:
        return sum(self.accepted)

    @property
    def emitted_tokens(self) -> float:
        """Draft tokens kept plus the target's own, one a round: the length of the text."""
        return self.accepted_tokens + self.rounds

    @property
    def fully_accepted_rounds(self) -> float:
        """Rounds that kept all `lookahead` tokens."""
        return self.accepted[-1]

    @property
    def histogram(self) -> tuple[float, ...]:
        """Rounds that kept exactly 0, 1, ... lookahead tokens; their sum is `rounds`."""
        at_least = (self.rounds, *self.accepted, 0.0)
        return tuple(more - fewer for more, fewer in pairwise(at_least))


def count_visits(visits_T: Array, tail_TK: Array, remaining_T: Array) -> Counts:
    """The one counting function.

    Args:
        visits_T: Rounds that start at each position of the text: 0 or 1 in a trace, a probability in a replay.
        tail_TK: Chance that a round starting at T accepts at least k tokens: 0 or 1 in a trace.
        remaining_T: Tokens that a round starting at T may accept, from `remaining_after` or fewer.
    """
    num_tokens, lookahead = tail_TK.shape
    possible_TK = visits_T[:, None] * (np.arange(1, lookahead + 1) <= remaining_T[:, None])
    tail_before_TK = np.concatenate([np.ones((num_tokens, 1)), tail_TK[:, :-1]], axis=1)
    return Counts(
        rounds=float(visits_T.sum()),
        possible=per_position(possible_TK),
        reached=per_position(possible_TK * tail_before_TK),
        accepted=per_position(possible_TK * tail_TK),
    )


def count_trace(rounds: Iterable[tuple[int, int]], *, num_tokens: int, lookahead: int) -> Counts:
    """Counts of rounds that happened.

    Args:
        rounds: Start and number of accepted tokens of each round.
        num_tokens: Length of the text they emitted.
        lookahead: Tokens a round proposes where the text has as many left.
    """
    asked = ((start, lookahead, accepted) for start, accepted in rounds)
    return count_proposals(asked, num_tokens=num_tokens, most=lookahead)


def count_proposals(rounds: Iterable[tuple[int, int, int]], *, num_tokens: int, most: int) -> Counts:
    """Counts of rounds that happened and differ in how many tokens they proposed, as where a draft stops early.

    Args:
        rounds: Start, number of proposed and number of accepted tokens of each round. What was proposed behind the end
            of the text does not count.
        num_tokens: Length of the text they emitted.
        most: Positions to count, at least as many as any round proposed.
    """
    visits_T, tail_TK, remaining_T = np.zeros(num_tokens), np.zeros((num_tokens, most)), remaining_after(num_tokens)
    for start, proposed, accepted in rounds:
        visits_T[start] += 1
        tail_TK[start, :accepted] = 1
        remaining_T[start] = min(remaining_T[start], proposed)
    return count_visits(visits_T, tail_TK, remaining_T)


def remaining_after(num_tokens: int) -> Array:
    """[T]: tokens that a round starting at T may accept in a text of so many; the last is never among them."""
    return np.arange(num_tokens - 1, -1, -1, dtype=np.float64)


def pool(counts: Sequence[Counts]) -> Counts:
    """Counts of several texts together."""
    return Counts(
        rounds=sum(text.rounds for text in counts),
        possible=per_position(np.array([text.possible for text in counts])),
        reached=per_position(np.array([text.reached for text in counts])),
        accepted=per_position(np.array([text.accepted for text in counts])),
    )


def tau(counts: Counts) -> float:
    """Mean acceptance length, the target's own token included: 1..lookahead + 1.

    Source: block efficiency of Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding",
    sec. 3.1 (arXiv 2211.17192), counted as in vLLM's `vllm/v1/spec_decode/metrics.py`.
    """
    return counts.emitted_tokens / counts.rounds


def ratio(numerator: float, denominator: float) -> float | None:
    """A rate, or None where nothing was counted."""
    return numerator / denominator if denominator else None


def per_position(count_XK: Array) -> tuple[float, ...]:
    """Sums over everything but the position in the round."""
    return tuple(float(count) for count in count_XK.sum(axis=0))
