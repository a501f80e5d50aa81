"""Exactly what a draft with a lookup policy would do along recorded answers. Pure; no torch.

Where the policy looks up follows from the text alone (eval/proposing/policy.py), and so does what is kept there: the
tokens looked up that are the text's own. Everywhere else the draft proposes, and is kept by the chances of
eval/acceptance/replay.py. So the rounds of a text are a Markov chain over its positions whose steps are all known, and
their expected numbers are exact, at temperature 0 and above.

How sure the draft is after the text's own tokens is recorded, so it is known too where a round of the draft ends by its
doubt (eval/proposing/stopping.py), as far as what it proposed is kept. Behind a token that is not kept it may doubt
elsewhere than along the text; such a round is taken to propose as many tokens as there. That is exact at a lookahead of
1, and at longer ones says how long rounds take, never how many there are.

Shape suffixes used in this file:
    T = tokens of one answer, K = position in a round, A = accepted tokens of a round
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from eval.acceptance.counts import Array
from eval.acceptance.replay import acceptance_tails, round_starts
from eval.acceptance.speedup import StepTimes
from eval.proposing.policy import ProposalPolicy, new_record
from eval.proposing.stopping import NEVER_STOPS, Stopping


@dataclass(frozen=True)
class RecordedAnswer:
    """An answer of the target, and what a draft does along it.

    Attributes:
        prompt_ids: Tokens before it.
        answer_ids: Its own.
        accept_T: Chance that each of them comes from the draft if a round proposes there.
        confidence_T: Of the draft there.
        max_new_tokens: It could have had.
    """

    prompt_ids: Sequence[int]
    answer_ids: Sequence[int]
    accept_T: Array
    confidence_T: Array
    max_new_tokens: int

    def rated(self, policy: ProposalPolicy) -> "RatedAnswer":
        """What the text's record says at each of its positions, for a policy's prior and weight."""
        record = new_record(policy, self.prompt_ids)
        rates, followers = [], []
        for token in self.answer_ids:
            rates.append(record.rate(policy))
            followers.append(record.token_ids[record.after :] if record.run else [])
            record.add(token)
        return RatedAnswer(self, rates, followers)


@dataclass(frozen=True)
class RatedAnswer:
    """A recorded answer with, at each of its positions, the rate of what could be looked up, and the tokens."""

    recorded: RecordedAnswer
    rates: Sequence[float]
    followers: Sequence[Sequence[int]]

    def looked_up(self, least: float, lookahead: int) -> tuple[list[int], list[int]]:
        """Tokens looked up at each position, 0 where the draft proposes, and how many of them come.

        As many are looked up as the text's limit leaves; none comes behind its end, and its last is the target's.
        """
        answer, proposed, kept = self.recorded.answer_ids, [], []
        for start, (rate, after) in enumerate(zip(self.rates, self.followers, strict=True)):
            limit = self.recorded.max_new_tokens - start - 1
            ids = list(after[: min(lookahead, limit)]) if after and rate >= least else []
            proposed.append(len(ids))
            kept.append(num_kept(ids, answer[start:-1]))
        return proposed, kept


def num_kept(proposed: Sequence[int], coming: Sequence[int]) -> int:
    """How many of the proposed tokens come, from the first on."""
    same = [own == token for own, token in zip(proposed, coming, strict=False)]
    return same.index(False) if False in same else len(same)


@dataclass(frozen=True)
class Rounds:
    """Expected rounds along one or several answers.

    Attributes:
        tokens: Emitted.
        drafted: Rounds of the draft, by the number of tokens it proposed: 0 where it doubts the first.
        caught_up: Of these, those before which it reads tokens that it did not propose or that were all kept.
        looked_up: Rounds of what was looked up, by the number of tokens.
        proposes_doubted: Whether a round ends with the token of doubt, which so takes no step of its own.
    """

    tokens: int
    drafted: Mapping[int, float]
    caught_up: float
    looked_up: Mapping[int, float]
    proposes_doubted: bool = False

    @property
    def tau(self) -> float:
        return self.tokens / (sum(self.drafted.values()) + sum(self.looked_up.values()))

    def speedup(self, lookahead: int, steps: StepTimes) -> float:
        """Over the target alone, by step times; a draft catches up on any number of tokens as on two.

        A step in which the draft doubts is a step all the same, and a round without a proposal one of the target alone.
        A number of tokens whose verification was not timed costs what the next larger one does.
        """

        def verify_s(count: int) -> float:
            return steps.verify_s[min(each for each in steps.verify_s if each >= count)] if count else steps.target_s

        drafting_s = sum(
            rounds * (min(count + 1 - self.proposes_doubted, lookahead) * steps.draft_s + verify_s(count))
            for count, rounds in self.drafted.items()
        )
        catching_up_s = self.caught_up * (steps.draft_two_s - steps.draft_s)
        looking_up_s = sum(rounds * verify_s(count) for count, rounds in self.looked_up.items())
        return self.tokens * steps.target_s / (drafting_s + catching_up_s + looking_up_s)


def pooled_rounds(rounds: Sequence[Rounds]) -> Rounds:
    return Rounds(
        sum(text.tokens for text in rounds),
        added([text.drafted for text in rounds]),
        sum(text.caught_up for text in rounds),
        added([text.looked_up for text in rounds]),
        rounds[0].proposes_doubted,
    )


def added(tables: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Tables added up, entry by entry."""
    totals: dict[int, float] = {}
    for table in tables:
        for count, rounds in table.items():
            totals[count] = totals.get(count, 0.0) + rounds
    return totals


@dataclass(frozen=True)
class Replayer:
    """One answer with a draft's lookahead and the doubt that ends its rounds, for policies of one prior and weight."""

    rated: RatedAnswer
    lookahead: int
    stopping: Stopping = NEVER_STOPS

    @cached_property
    def proposals(self) -> NDArray[np.bool_]:
        """[T, K]: whether a round of the draft from each position proposes so many tokens, or the text ends first."""
        sure_T = np.append(self.rated.recorded.confidence_T, np.ones(self.lookahead))
        return self.stopping.proposed(sliding_window_view(sure_T, self.lookahead)[:-1])

    @cached_property
    def drafted(self) -> Array:
        """[T, K]: chance that a round of the draft that starts at each position keeps at least k tokens."""
        return acceptance_tails(self.rated.recorded.accept_T, self.lookahead) * self.proposals

    @cached_property
    def proposed(self) -> NDArray[np.int64]:
        """[T]: tokens a round of the draft proposes from each position; as many as it may where the text ends first."""
        return self.proposals.sum(axis=1).astype(np.int64)

    def rounds(self, least: float, lookup_lookahead: int) -> Rounds:
        """Of one policy: who proposes where, what is kept, and where rounds start."""
        proposed, kept = self.rated.looked_up(least, lookup_lookahead)
        tail_TK = self.tails(proposed, kept, lookup_lookahead)
        whole_T = self.proposed if self.stopping.proposes_doubted else np.full(len(proposed), self.lookahead)
        visits_T, behind_T = visited(tail_TK, proposed, whole_T)
        is_draft_T = np.array(proposed) == 0
        drafted = visits_by(self.proposed[is_draft_T], visits_T[is_draft_T])
        looked_up = visits_by(np.array(proposed)[~is_draft_T], visits_T[~is_draft_T])
        caught_up = float(behind_T[is_draft_T].sum())
        return Rounds(len(proposed), drafted, caught_up, looked_up, self.stopping.proposes_doubted)

    def tails(self, proposed: Sequence[int], kept: Sequence[int], lookup_lookahead: int) -> Array:
        """[T, K]: chance that a round starting at t keeps at least k tokens, whoever proposes there."""
        most = max(self.lookahead, lookup_lookahead)
        tail_TK = np.pad(self.drafted, ((0, 0), (0, most - self.lookahead)))
        for start in np.flatnonzero(proposed):
            tail_TK[start] = np.arange(1, most + 1) <= kept[start]
        return tail_TK


def visits_by(counts_T: NDArray[np.int64], visits_T: Array) -> dict[int, float]:
    """Rounds that start at some positions, by a number that each position has."""
    reached = visits_T > 0
    return {int(count): float(visits_T[counts_T == count].sum()) for count in np.unique(counts_T[reached])}


def visited(tail_TK: Array, proposed: Sequence[int], whole_T: NDArray[np.int64]) -> tuple[Array, Array]:
    """Chance that a round starts at each position, and that it does with tokens the draft has still to read.

    These are left by a round that was looked up, and by one of the draft that kept all it was asked for.

    Args:
        tail_TK: Chance that a round from each position keeps so many tokens.
        proposed: Tokens that are looked up at each position; 0 where the draft proposes.
        whole_T: Tokens that a round of the draft keeps if it leaves one unread.
    """
    exactly_TA = -np.diff(tail_TK, axis=1, prepend=1.0, append=0.0)
    visits_T, behind_T = round_starts(tail_TK), np.zeros(len(tail_TK))
    for start, count in enumerate(proposed):
        ends = slice(start + 1, start + 1 + exactly_TA.shape[1])
        reached = visits_T[start] * exactly_TA[start, : len(visits_T[ends])]
        unread = reached if count else reached * (np.arange(len(reached)) == whole_T[start])
        behind_T[ends] += unread
    return visits_T, behind_T
