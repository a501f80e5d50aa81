"""The lookup policy that is fastest beside a draft, by exact replay of recorded answers and measured step times. Pure.

Answers it is tuned on must not be those it is scored on, nor those the draft was trained on: the draft is right more
often there, and would be trusted too much.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from eval.beside.replay import RecordedAnswer, Replayer, Rounds, pooled_rounds
from eval.decoding.beside import LookupPolicy, hit_rates
from eval.speedup import StepTimes

LONGEST = 4  # tokens of a run; longer ones are so rare that their rates are those of four
WEIGHTS = (2.0, 8.0)
LEAST_RATES = (0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85)
NEVER = 2.0  # no rate is as high


@dataclass(frozen=True)
class Tuned:
    """The policy that does best, and what that is worth on the answers it was tuned on.

    Attributes:
        policy: It.
        lookahead: Tokens the draft proposes beside it.
        speedup: Of both together over the target alone.
        draft_alone: Of the draft at its own best lookahead.
        answers: It was tuned on.
    """

    policy: LookupPolicy
    lookahead: int
    speedup: float
    draft_alone: float
    answers: int


def tune(answers: Sequence[RecordedAnswer], steps: StepTimes) -> Tuned:
    """Try every policy of a grid at every lookahead whose verification was timed.

    Args:
        answers: Recorded; see above.
        steps: Of target and draft.

    Raises:
        ValueError: If there are no answers.
    """
    if not answers:
        raise ValueError("a policy is tuned on recorded answers, got none.")
    prior = hit_rates(((one.prompt_ids, one.answer_ids) for one in answers), LONGEST)
    lookaheads = sorted(steps.verify_s)
    base = LookupPolicy(lookaheads[-1], NEVER, prior, WEIGHTS[0])
    alone = best(answers, [(base, lookahead) for lookahead in lookaheads], steps)
    tried = [
        (replace(base, lookahead=most, least=least, weight=weight), lookahead)
        for weight, lookahead, least, most in product(WEIGHTS, lookaheads, LEAST_RATES, lookaheads)
    ]
    speedup, policy, lookahead = best(answers, tried, steps)
    if speedup <= alone[0]:
        speedup, policy, lookahead = alone
    return Tuned(policy, lookahead, speedup, alone[0], len(answers))


def best(
    answers: Sequence[RecordedAnswer], tried: Iterable[tuple[LookupPolicy, int]], steps: StepTimes
) -> tuple[float, LookupPolicy, int]:
    """The fastest of some policies with some lookaheads of the draft, the first of several."""
    replayers: dict[tuple[float, int], list[Replayer]] = {}
    found = None
    for policy, lookahead in tried:
        key = policy.weight, lookahead
        if key not in replayers:
            replayers[key] = [Replayer(one.rated(policy), lookahead) for one in answers]
        rounds = pooled_rounds([one.rounds(policy.least, policy.lookahead) for one in replayers[key]])
        speedup = rounds.speedup(lookahead, steps)
        if found is None or speedup > found[0]:
            found = speedup, policy, lookahead
    assert found is not None, "something is tried"
    return found


def rounds_of(answers: Sequence[RecordedAnswer], policy: LookupPolicy, lookahead: int) -> Rounds:
    """What a policy would do along answers."""
    replayers = (Replayer(one.rated(policy), lookahead) for one in answers)
    return pooled_rounds([each.rounds(policy.least, policy.lookahead) for each in replayers])


def worth(answers: Sequence[RecordedAnswer], policy: LookupPolicy, steps: StepTimes) -> Mapping[int, float]:
    """The speed-up of a policy by the draft's lookahead."""
    return {lookahead: rounds_of(answers, policy, lookahead).speedup(lookahead, steps) for lookahead in steps.verify_s}
