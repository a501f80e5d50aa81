"""What each way of decoding is worth: tokens per second, how many times as fast as the target alone, and as predicted.

Drafts that took the same turns are compared in the same way, each at the lookahead that is best for it.

A ratio compares seconds per token of the same prompts in the same turns. Groups of prompts that were decoded together
are the units of its interval, all repetitions of a group together: repetitions tell nothing of other prompts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from eval.acceptance.estimates import Resampling
from eval.acceptance.paired_ratios import INTERVALS, paired_ratio_quotient
from eval.acceptance.speedup import StepTimes
from eval.latency.measure import Latency
from eval.speed.best import against_lookup, behind_the_fastest, best_of_each, estimate_record
from eval.speed.measure import Seconds, Times, columns, whole_seconds
from eval.speed.prediction import (
    catch_up_rate,
    longest,
    predicted_beside,
    predicted_round,
    prediction,
    steps_per_round,
)
from eval.speed.ways import BESIDE, DRAFT, PLAIN, Taken, Way

Record = dict[str, Any]


def way_record(way: Way, times: Times, latency: Latency, resampling: Resampling) -> Record:
    """One way beside the target alone.

    Args:
        way: Which.
        times: Of all ways, PLAIN among them.
        latency: Steps of the target and each draft, measured beside.
        resampling: How intervals are made.
    """
    taken = [one for row in times[way] for one in row.values()]
    rounds = [one for each in taken for text in each.texts for one in text]
    record: Record = {
        "way": way.kind,
        "draft": way.draft or None,
        "lookahead": way.lookahead,
        "tokens": sum(one.tokens for one in taken),
        "rounds": len(rounds) or None,
        "tau": sum(one.tokens for one in taken) / len(rounds) if rounds else None,
        "decode": speed_record(way, times, resampling, lambda one: one.decode_s),
        "whole": speed_record(way, times, resampling, whole_seconds),
        "pass_ms": pass_ms(taken),
        "round_ms": round_record(taken) if rounds else None,
        "predicted": None,
    }
    if way.kind == DRAFT:
        alone = [one for row in times[Way(PLAIN)] for one in row.values()]
        worth, caught_up = steps_per_round(taken, alone), catch_up_rate(taken)
        record["predicted"] = prediction(way, worth, caught_up, latency, resampling)
        record["predicted_round_ms"] = predicted_round(caught_up, way.lookahead, latency.step_times(way.draft))
    if way.kind == BESIDE and all(len(one.texts) == 1 for one in taken):
        record["predicted"] = predicted_beside(way, taken, latency, resampling)
    return record


def speed_record(way: Way, times: Times, resampling: Resampling, seconds: Seconds) -> Record | None:
    """Tokens per second and the ratio to the target alone; None where such seconds are not told."""
    own = columns(times[way], seconds)
    if own is None:
        return None
    alone = columns(times[Way(PLAIN)], seconds)
    assert alone is not None
    ratio = paired_ratio_quotient(alone, own, resampling)
    return {"tokens_per_s": sum(own[1]) / sum(own[0]), "speedup": estimate_record(ratio)}


def pass_ms(taken: Sequence[Taken]) -> float | None:
    """Milliseconds from one pass of the target to the next; None where passes are not told."""
    spent = [(one.decode_s, one.passes) for one in taken if one.decode_s is not None and one.passes is not None]
    if len(spent) < len(taken):
        return None
    return 1000 * sum(decode_s for decode_s, _ in spent) / sum(passes for _, passes in spent)


def round_record(taken: Sequence[Taken]) -> Record:
    """Milliseconds of a mean round: what proposes, the target, and the loop around them."""
    rounds = [one for each in taken for one in longest(each)]
    whole_s = sum(one.decode_s or 0 for one in taken)
    draft_s, verify_s = sum(one.draft_s for one in rounds), sum(one.verify_s for one in rounds)
    parts = {"draft": draft_s, "verify": verify_s, "rest": whole_s - draft_s - verify_s}
    return {name: 1000 * seconds / len(rounds) for name, seconds in parts.items()}


def speed_record_of_all(times: Times, latency: Latency, resampling: Resampling) -> Record:
    """Every way; step times; every kind of way at its best; the drafts beside the fastest of them."""
    steps = {name: latency.step_times(name) for name in latency.drafts}
    rows = [way_record(way, times, latency, resampling) for way in times]
    best = best_of_each(times, resampling)
    return {
        "ways": rows,
        "steps_ms": steps_record(steps),
        "groups": len(times[Way(PLAIN)][0]),
        "intervals": INTERVALS,
        "best": best,
        "behind": behind_the_fastest(best, times, resampling),
        "against_lookup": against_lookup(best, times, resampling),
        "largest_error": largest_error(rows),
    }


def steps_record(steps: Mapping[str, StepTimes]) -> Record:
    """Milliseconds of the target's steps, which all drafts share, and of each draft's."""
    any_steps = next(iter(steps.values()))
    return {
        "target": 1000 * any_steps.target_s,
        "verify": {str(lookahead): 1000 * seconds for lookahead, seconds in any_steps.verify_s.items()},
        "drafts": {
            name: {"draft": 1000 * own.draft_s, "draft_two": 1000 * own.draft_two_s} for name, own in steps.items()
        },
    }


def largest_error(rows: Sequence[Record]) -> Record:
    """Where prediction is farthest from measured decoding, as a share of the measured speed-up."""
    errors = [
        {
            "draft": row["draft"],
            "lookahead": row["lookahead"],
            "share": row["predicted"]["value"] / row["decode"]["speedup"]["value"] - 1,
        }
        for row in rows
        if row["way"] == DRAFT
    ]
    return max(errors, key=lambda one: abs(one["share"]))
