"""The policy that is fastest with a draft, by exact replay of recorded answers and measured step times. Pure.

Answers it is tuned on must not be those it is scored on, nor those the draft was trained on: the draft is right more
often there, and would be trusted too much.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from eval.acceptance.speedup import StepTimes
from eval.policies.policy_replay import RatedAnswer, RecordedAnswer, Replayer, Rounds, pooled_rounds
from eval.proposing.policy import ProposalPolicy, hit_rates
from eval.proposing.stopping import Stopping

LONGEST = 4  # tokens of a run; longer ones are so rare that their rates are those of four
WEIGHTS = (2.0, 8.0)
LEAST_RATES = (0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85)
CONFIDENCES = (0.0, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8)
NEVER = 2.0  # no rate is as high

Tried = tuple[ProposalPolicy, int]  # with the draft's lookahead


@dataclass(frozen=True)
class Tuned:
    """The policy that does best, and what that is worth on the answers it was tuned on.

    Attributes:
        policy: It.
        lookahead: Tokens the draft proposes beside it at most.
        speedup: Of both together over the target alone.
        draft_alone: Of the draft at its own best lookahead, proposing everywhere.
        answers: It was tuned on.
    """

    policy: ProposalPolicy
    lookahead: int
    speedup: float
    draft_alone: float
    answers: int


def tune(answers: Sequence[RecordedAnswer], steps: StepTimes) -> Tuned:
    """Try policies of a grid at every lookahead whose verification was timed, one half after the other.

    First when the draft proposes, without looking up; beside that, when to look up; beside that, the first again. All
    together would be a hundred times the work.

    Args:
        answers: Recorded; see above.
        steps: Of target and draft.

    Raises:
        ValueError: If there are no answers.
    """
    if not answers:
        raise ValueError("a policy is tuned on recorded answers, got none.")
    prior = hit_rates(((answer.prompt_ids, answer.answer_ids) for answer in answers), LONGEST)
    lookaheads = sorted(steps.verify_s)
    base = ProposalPolicy(lookaheads[-1], NEVER, prior, WEIGHTS[0])
    alone, *_ = best(answers, [(base, lookahead) for lookahead in lookaheads], steps)
    fastest = best(answers, confidences(base, lookaheads), steps)
    for grid in (lookups, confidences):
        fastest = max(fastest, best(answers, grid(fastest[1], lookaheads), steps), key=lambda candidate: candidate[0])
    speedup, policy, lookahead = fastest
    return Tuned(policy, lookahead, speedup, alone, len(answers))


def confidences(policy: ProposalPolicy, lookaheads: Sequence[int]) -> list[Tried]:
    """A policy with every least confidence, at every lookahead of the draft."""
    return [(replace(policy, confidence=least), lookahead) for least, lookahead in product(CONFIDENCES, lookaheads)]


def lookups(policy: ProposalPolicy, lookaheads: Sequence[int]) -> list[Tried]:
    """A policy looking up in every way of the grid, at every lookahead of the draft."""
    return [
        (replace(policy, lookahead=most, least=least, weight=weight), lookahead)
        for weight, lookahead, least, most in product(WEIGHTS, lookaheads, LEAST_RATES, lookaheads)
    ]


def best(
    answers: Sequence[RecordedAnswer], tried: Iterable[Tried], steps: StepTimes
) -> tuple[float, ProposalPolicy, int]:
    """The fastest of some policies with some lookaheads of the draft, the first of several."""
    rated: dict[float, list[RatedAnswer]] = {}
    replayers: dict[tuple[float, float, int], list[Replayer]] = {}
    fastest = None
    for policy, lookahead in tried:
        if policy.weight not in rated:
            rated[policy.weight] = [answer.rated(policy) for answer in answers]
        key = policy.weight, policy.confidence, lookahead
        if key not in replayers:
            replayers[key] = [
                Replayer(answer, lookahead, Stopping(policy.confidence)) for answer in rated[policy.weight]
            ]
        rounds = pooled_rounds([replayer.rounds(policy.least, policy.lookahead) for replayer in replayers[key]])
        speedup = rounds.speedup(lookahead, steps)
        if fastest is None or speedup > fastest[0]:
            fastest = speedup, policy, lookahead
    assert fastest is not None, "something is tried"
    return fastest


def rounds_of(answers: Sequence[RecordedAnswer], policy: ProposalPolicy, lookahead: int) -> Rounds:
    """What a policy would do along answers."""
    replayers = (Replayer(answer.rated(policy), lookahead, Stopping(policy.confidence)) for answer in answers)
    return pooled_rounds([each.rounds(policy.least, policy.lookahead) for each in replayers])


def worth(answers: Sequence[RecordedAnswer], policy: ProposalPolicy, steps: StepTimes) -> Mapping[int, float]:
    """The speed-up of a policy by the draft's lookahead."""
    return {lookahead: rounds_of(answers, policy, lookahead).speedup(lookahead, steps) for lookahead in steps.verify_s}
