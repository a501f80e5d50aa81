"""How much doubt is to end a draft's rounds, for each way of ending them, by exact replay of recorded answers. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from eval.acceptance.speedup import StepTimes
from eval.policies.policy_replay import RatedAnswer, RecordedAnswer, Replayer, Rounds, pooled_rounds
from eval.policies.tune import NEVER
from eval.proposing.policy import ProposalPolicy
from eval.proposing.stopping import NEVER_STOPS, Stopping

StopRule = Literal["before doubt", "after doubt", "expected gain"]
STOP_RULES: tuple[StopRule, ...] = get_args(StopRule)
LEAST = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8)
NEVER_LOOKED_UP = ProposalPolicy(1, NEVER, (0.5,), 1.0)


@dataclass(frozen=True)
class TunedStopping:
    """The threshold and lookahead that do best by one rule.

    Attributes:
        rule: How rounds end.
        least: The threshold; 0 where rounds that never end early do best.
        lookahead: Tokens proposed at most.
        speedup: Over the target alone, on the answers it was tuned on.
    """

    rule: StopRule
    least: float
    lookahead: int
    speedup: float


def stopping_of(rule: StopRule, least: float) -> Stopping:
    """A rule with its threshold; 0 never ends a round."""
    if least == 0:
        return NEVER_STOPS
    if rule == "expected gain":
        return Stopping(chance=least)
    return Stopping(confidence=least, proposes_doubted=rule == "after doubt")


def tune_stopping(answers: Sequence[RecordedAnswer], steps: StepTimes) -> tuple[TunedStopping, ...]:
    """Each rule at its best of a grid of thresholds and lookaheads; the first of several that do equally well.

    Args:
        answers: Recorded, and not those that are scored (eval/policies/tune.py).
        steps: Of target and draft.
    """
    rated = [answer.rated(NEVER_LOOKED_UP) for answer in answers]
    return tuple(best_of(rule, rated, steps) for rule in STOP_RULES)


def best_of(rule: StopRule, rated: Sequence[RatedAnswer], steps: StepTimes) -> TunedStopping:
    tried = [
        TunedStopping(rule, least, lookahead, rounds_along(rated, rule, least, lookahead).speedup(lookahead, steps))
        for lookahead in sorted(steps.verify_s)
        for least in (0.0, *LEAST)
    ]
    return max(tried, key=lambda each: each.speedup)


def stopped_rounds(answers: Sequence[RecordedAnswer], tuned: TunedStopping) -> Rounds:
    """What a draft would do along answers."""
    rated = [answer.rated(NEVER_LOOKED_UP) for answer in answers]
    return rounds_along(rated, tuned.rule, tuned.least, tuned.lookahead)


def rounds_along(rated: Sequence[RatedAnswer], rule: StopRule, least: float, lookahead: int) -> Rounds:
    replayers = [Replayer(answer, lookahead, stopping_of(rule, least)) for answer in rated]
    return pooled_rounds([replayer.rounds(NEVER, 1) for replayer in replayers])
