"""What step times promise for the rounds that were decoded.

A batch of rows is decoded in rounds of all rows that are left, as long as any is; so is it without a draft, in steps.
Seconds per token compare the rounds of the row that takes most of them with the steps of the row that takes most:

    S = w T_target / (g T_draft + f (T_draft_two - T_draft) + T_verify(g))

with w the tokens per round of the batch over the tokens per step of the target alone, both over all rows, and f the
share of its rounds before which the draft catches up, which a batch does if any of its rows kept everything. Of one row
w is tau, and this is the formula of eval/acceptance/speedup.py. Steps are those of the whole batch: what a round gets
cheaper when rows have left is not predicted.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from eval.acceptance.estimates import Estimate, Resampling, resampled
from eval.acceptance.speedup import StepTimes, predicted_speedup
from eval.decoding.texts import Round
from eval.latency.measure import Latency
from eval.policies.policy_replay import Rounds
from eval.proposing.stopping import NEVER_STOPS, Stopping
from eval.records.speed import RoundParts
from eval.speed.ways import Taken, Way


def longest(taken: Taken) -> Sequence[Round]:
    """The rounds of the row that took most of them: each was taken by all rows that were left."""
    return max(taken.texts, key=len)


def steps_per_round(taken: Sequence[Taken], alone: Sequence[Taken]) -> float:
    """How many steps of the target alone a round of the batch stands for: tau, if there is one row.

    Args:
        taken: By a way whose passes are rounds.
        alone: By the target alone, of the same prompts.
    """
    return tokens_per_pass(taken) / tokens_per_pass(alone)


def tokens_per_pass(taken: Sequence[Taken]) -> float:
    """Tokens of all rows over passes of the target, each of all rows that were left."""
    return sum(batch.tokens for batch in taken) / sum(batch.passes or 0 for batch in taken)


def catch_up_rate(taken: Sequence[Taken]) -> float:
    """Share of the rounds of batches before which the draft catches up on a token of any row."""
    caught_up = sum(catches_up(batch, step) for batch in taken for step in range(1, len(longest(batch))))
    return caught_up / sum(len(longest(batch)) for batch in taken)


def catches_up(taken: Taken, step: int) -> bool:
    """Whether any row that goes on at a round kept everything in the round before."""
    before = (row[step - 1] for row in taken.texts if len(row) > step)
    return any(round_.is_behind for round_ in before)


def prediction(way: Way, worth: float, caught_up: float, latency: Latency, resampling: Resampling) -> Estimate:
    """What step times promise; the interval is that of step times alone.

    Args:
        way: Of a draft.
        worth: Steps of the target alone that a round stands for.
        caught_up: Share of the rounds before which the draft catches up.
        latency: Steps of the target and each draft.
        resampling: How the interval is made.
    """
    drawn = [
        predicted_speedup(worth, caught_up, way.lookahead, each)
        for each in latency.resampled_step_times(way.draft, [way.lookahead], resampling)
    ]
    value = predicted_speedup(worth, caught_up, way.lookahead, latency.step_times(way.draft))
    return resampled(value, drawn, resampling.confidence)


def predicted_with_policy(
    way: Way, taken: Sequence[Taken], latency: Latency, resampling: Resampling, stopping: Stopping = NEVER_STOPS
) -> Estimate:
    """The same of a draft whose rounds differ in length, by a policy or its doubt, from its own; of one row at a time.

    Where the token of doubt is proposed too, that takes no step of its own.
    """
    texts = [text for batch in taken for text in batch.texts]
    rounds, follows = [round_ for text in texts for round_ in text], [pair for text in texts for pair in pairwise(text)]
    behind = sum(not round_.looked_up and (last.looked_up or last.is_behind) for last, round_ in follows)
    drafted, looked_up = (
        Counter(round_.proposed for round_ in rounds if round_.looked_up is kind) for kind in (False, True)
    )
    tokens = sum(batch.tokens for batch in taken)
    counted = Rounds(tokens, drafted, behind, looked_up, stopping.proposes_doubted)
    lookaheads = sorted({way.lookahead, *drafted, *looked_up} - {0})
    drawn = latency.resampled_step_times(way.draft, lookaheads, resampling)
    value = counted.speedup(way.lookahead, latency.step_times(way.draft))
    return resampled(value, [counted.speedup(way.lookahead, each) for each in drawn], resampling.confidence)


def predicted_round(caught_up: float, lookahead: int, steps: StepTimes) -> RoundParts:
    """Milliseconds of a round's parts by step times; nothing is predicted of the loop."""
    draft_s = lookahead * steps.draft_s + caught_up * (steps.draft_two_s - steps.draft_s)
    return RoundParts(draft=1000 * draft_s, verify=1000 * steps.verify_s[lookahead], rest=0.0)
