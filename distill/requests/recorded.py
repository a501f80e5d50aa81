"""Requests whose answers are there: what the draft of the moment would have done with each, by exact replay.

A lossless draft changes no word of an answer, so that drafts can be compared on answers that were written once. Of
greedy answers the replay is what decoding does. Of sampled ones it draws whether each token would have been kept.

Shape suffixes used in this file:
    A = tokens of the answer, H = width of the target's last hidden state
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from distill.requests.chances import Chances
from distill.requests.rounds import ReplayedRounds, rounds_along
from distill.requests.served import Served
from eval.records.request import RequestRecord


@dataclass(frozen=True)
class Recorded:
    """A request, its answer, and what stood behind the answer's tokens."""

    request: int
    source: str
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    hidden_AH: Tensor


def replayed(
    recorded: Recorded, chances: Chances, *, lookahead: int, seed: int, updates: int
) -> tuple[Served, RequestRecord]:
    """What a draft, which has had so many updates, would have done.

    Args:
        recorded: The request.
        chances: Of this draft.
        lookahead: Tokens a round proposes.
        seed: Of which tokens of sampled answers would have been kept.
        updates: That it has had.
    """
    accept_A = chances.accepts.accept
    drawn_A = np.random.default_rng([seed, recorded.request, 2]).random(len(accept_A))
    rounds = rounds_along(list(drawn_A < accept_A), lookahead=lookahead)
    return of_rounds(recorded, rounds, updates), record_of(recorded, rounds, chances, updates)


def of_rounds(recorded: Recorded, rounds: ReplayedRounds, updates: int) -> Served:
    """The request as an update learns from it."""
    return Served(
        request=recorded.request,
        source=recorded.source,
        prompt_ids=recorded.prompt_ids,
        answer_ids=recorded.answer_ids,
        mistakes=rounds.mistakes,
        hidden_AH=recorded.hidden_AH,
        seen_by=updates,
    )


def record_of(recorded: Recorded, rounds: ReplayedRounds, chances: Chances, updates: int) -> RequestRecord:
    """The line of the request; nobody took any time over it."""
    ids, proposals, likeliest = recorded.answer_ids, [], chances.proposed_ids
    if likeliest is not None:
        for start, proposed, kept in zip(rounds.starts, rounds.proposed, rounds.kept, strict=True):
            missed = (likeliest[start + kept],) if kept < proposed else ()
            proposals.append((*ids[start : start + kept], *missed))
    return RequestRecord(
        request=recorded.request,
        source=recorded.source,
        updates=updates,
        alpha=chances.alpha,
        tau=len(ids) / len(rounds.starts),
        tokens=len(ids),
        rounds=len(rounds.starts),
        proposed=sum(rounds.proposed),
        accepted=sum(rounds.kept),
        seconds=None,
        wait_s=None,
        answer_ids=ids,
        proposals=tuple(proposals),
        kept=rounds.kept,
    )
