"""What each way of decoding is worth: tokens per second, how many times as fast as the target alone, and as predicted.

Drafts that took the same turns are compared in the same way, each at the lookahead that is best for it.

A ratio compares seconds per token of the same prompts in the same turns. Groups of prompts that were decoded together
are the units of its interval, all repetitions of a group together: repetitions tell nothing of other prompts.
"""

from collections.abc import Mapping, Sequence

from eval.acceptance.estimates import Resampling
from eval.acceptance.paired_ratios import INTERVALS, paired_ratio_quotient
from eval.acceptance.speedup import StepTimes
from eval.decoding.texts import Speculation
from eval.latency.measure import Latency
from eval.proposing.stopping import NEVER_STOPS
from eval.records.speed import DraftStepsMs, LargestError, RoundParts, Speed, SpeedFigures, SpeedWay, StepsMs
from eval.speed.best import against_lookup, behind_the_fastest, best_of_each
from eval.speed.measure import Seconds, Times, columns, whole_seconds
from eval.speed.prediction import (
    catch_up_rate,
    longest,
    predicted_round,
    predicted_with_policy,
    prediction,
    steps_per_round,
)
from eval.speed.ways import BESIDE, DRAFT, PLAIN, Taken, Way

CONSTANT = Speculation()  # rounds of one length


def speed_of_way(
    way: Way, times: Times, latency: Latency, resampling: Resampling, speculation: Speculation = CONSTANT
) -> SpeedWay:
    """One way beside the target alone.

    Args:
        way: Which.
        times: Of all ways, PLAIN among them.
        latency: Steps of the target and each draft, measured beside.
        resampling: How intervals are made.
        speculation: How drafts were used, but for their lookahead.
    """
    taken = [batch for row in times[way] for batch in row.values()]
    rounds = [round_ for each in taken for text in each.texts for round_ in text]
    whole = speed(way, times, resampling, whole_seconds)
    assert whole is not None
    predicted = predicted_round_ms = None
    is_constant = not (speculation.adaptive or speculation.stopping.is_on)
    if way.kind == DRAFT and is_constant:
        alone = [batch for row in times[Way(PLAIN)] for batch in row.values()]
        worth, caught_up = steps_per_round(taken, alone), catch_up_rate(taken)
        predicted = prediction(way, worth, caught_up, latency, resampling)
        predicted_round_ms = predicted_round(caught_up, way.lookahead, latency.step_times(way.draft))
    varies = way.kind == BESIDE or (way.kind == DRAFT and not is_constant)
    if varies and all(len(batch.texts) == 1 for batch in taken):
        stopping = NEVER_STOPS if way.kind == BESIDE else speculation.stopping
        predicted = predicted_with_policy(way, taken, latency, resampling, stopping)
    return SpeedWay(
        way=way.kind,
        draft=way.draft or None,
        lookahead=way.lookahead,
        tokens=sum(batch.tokens for batch in taken),
        rounds=len(rounds) or None,
        tau=sum(batch.tokens for batch in taken) / len(rounds) if rounds else None,
        decode=speed(way, times, resampling, lambda batch: batch.decode_s),
        whole=whole,
        pass_ms=pass_ms(taken),
        round_ms=round_parts(taken) if rounds else None,
        predicted=predicted,
        predicted_round_ms=predicted_round_ms,
    )


def speed(way: Way, times: Times, resampling: Resampling, seconds: Seconds) -> Speed | None:
    """Tokens per second and the ratio to the target alone; None where such seconds are not told."""
    own = columns(times[way], seconds)
    if own is None:
        return None
    alone = columns(times[Way(PLAIN)], seconds)
    assert alone is not None
    return Speed(tokens_per_s=sum(own[1]) / sum(own[0]), speedup=paired_ratio_quotient(alone, own, resampling))


def pass_ms(taken: Sequence[Taken]) -> float | None:
    """Milliseconds from one pass of the target to the next; None where passes are not told."""
    spent = [
        (batch.decode_s, batch.passes) for batch in taken if batch.decode_s is not None and batch.passes is not None
    ]
    if len(spent) < len(taken):
        return None
    return 1000 * sum(decode_s for decode_s, _ in spent) / sum(passes for _, passes in spent)


def round_parts(taken: Sequence[Taken]) -> RoundParts:
    rounds = [round_ for each in taken for round_ in longest(each)]
    whole_s = sum(batch.decode_s or 0 for batch in taken)
    draft_s, verify_s = sum(round_.draft_s for round_ in rounds), sum(round_.verify_s for round_ in rounds)
    draft, verify, rest = (1000 * part / len(rounds) for part in (draft_s, verify_s, whole_s - draft_s - verify_s))
    return RoundParts(draft=draft, verify=verify, rest=rest)


def speed_figures(
    times: Times, latency: Latency, resampling: Resampling, speculation: Speculation = CONSTANT
) -> SpeedFigures:
    """Every way; step times; every kind of way at its best; the drafts beside the fastest of them."""
    steps = {name: latency.step_times(name) for name in latency.drafts}
    rows = tuple(speed_of_way(way, times, latency, resampling, speculation) for way in times)
    best = best_of_each(times, resampling)
    return SpeedFigures(
        ways=rows,
        steps_ms=steps_ms(steps),
        groups=len(times[Way(PLAIN)][0]),
        intervals=INTERVALS,
        best=tuple(best),
        behind=tuple(behind_the_fastest(best, times, resampling)),
        against_lookup=tuple(against_lookup(best, times, resampling)),
        largest_error=largest_error(rows),
    )


def steps_ms(steps: Mapping[str, StepTimes]) -> StepsMs:
    any_steps = next(iter(steps.values()))
    return StepsMs(
        target=1000 * any_steps.target_s,
        verify={str(lookahead): 1000 * seconds for lookahead, seconds in any_steps.verify_s.items()},
        drafts={
            name: DraftStepsMs(draft=1000 * own.draft_s, draft_two=1000 * own.draft_two_s)
            for name, own in steps.items()
        },
    )


def largest_error(rows: Sequence[SpeedWay]) -> LargestError | None:
    """Where prediction is farthest from measured decoding; None where nothing was predicted of drafts."""
    errors = [
        LargestError(
            draft=row.draft,
            lookahead=row.lookahead,
            share=row.predicted.value / row.decode.speedup.value - 1,
        )
        for row in rows
        if row.way == DRAFT and row.draft and row.predicted and row.decode
    ]
    return max(errors, key=lambda error: abs(error.share), default=None)
