"""What each way of decoding is worth: tokens per second, how many times as fast as the target alone, and as predicted.

A ratio compares seconds per token of the same prompts in the same turns. Its interval is made by bootstrap over groups
of prompts, all repetitions of a group together; of a single group over its repetitions.
"""

from collections.abc import Callable, Sequence
from typing import Any

from eval.acceptance import Estimate, Resampling, paired_ratio_quotient
from eval.decoding.texts import Round
from eval.latency.measure import Latency
from eval.speed.measure import Times
from eval.speed.ways import DRAFT, LOOKUP, PLAIN, Taken, Way
from eval.speedup import StepTimes, predicted_speedup

Record = dict[str, Any]
Seconds = Callable[[Taken], float | None]


def way_record(way: Way, times: Times, steps: StepTimes, resampling: Resampling) -> Record:
    """One way beside the target alone.

    Args:
        way: Which.
        times: Of all ways, PLAIN among them.
        steps: Of the target and the draft, measured beside.
        resampling: How intervals are made.
    """
    taken = [one for row in times[way] for one in row.values()]
    rounds = [one for each in taken for text in each.texts for one in text]
    record: Record = {
        "way": way.kind,
        "lookahead": way.lookahead,
        "tokens": sum(one.tokens for one in taken),
        "rounds": len(rounds) or None,
        "tau": sum(one.tokens for one in taken) / len(rounds) if rounds else None,
        "decode": speed_record(way, times, resampling, lambda one: one.decode_s),
        "whole": speed_record(way, times, resampling, lambda one: one.whole_s),
        "pass_ms": pass_ms(taken),
        "round_ms": round_record(taken) if rounds else None,
        "predicted": None,
    }
    if way.kind == DRAFT:
        full_rate = sum(one.accepted == one.lookahead for one in rounds) / len(rounds)
        record["predicted"] = predicted_speedup(record["tau"], full_rate, way.lookahead, steps)
        record["predicted_round_ms"] = predicted_round(full_rate, way.lookahead, steps)
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


def columns(rows: Sequence[dict[int, Taken]], seconds: Seconds) -> tuple[list[float], list[float]] | None:
    """Seconds and tokens of every group over all repetitions, or of every repetition of a single group."""
    places = sorted(rows[0])
    units = (
        [[row[place] for row in rows] for place in places] if len(places) > 1 else [[row[places[0]]] for row in rows]
    )
    taken = [[seconds(one) for one in unit] for unit in units]
    if any(value is None for unit in taken for value in unit):
        return None
    return [sum(value or 0 for value in unit) for unit in taken], [sum(one.tokens for one in unit) for unit in units]


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


def longest(taken: Taken) -> Sequence[Round]:
    """The rounds of the row that took most of them: each was taken by all rows that were left."""
    return max(taken.texts, key=len)


def predicted_round(full_rate: float, lookahead: int, steps: StepTimes) -> Record:
    """The same by step times; nothing is predicted of the loop."""
    draft_s = lookahead * steps.draft_s + full_rate * (steps.draft_two_s - steps.draft_s)
    return {"draft": 1000 * draft_s, "verify": 1000 * steps.verify_s[lookahead], "rest": 0.0}


def estimate_record(estimate: Estimate) -> Record:
    """A value with its interval."""
    return {"value": estimate.value, "interval": estimate.interval}


def speed_record_of_all(times: Times, latency: Latency, resampling: Resampling) -> Record:
    """Every way; step times; the fastest way with a draft and without."""
    steps = latency.step_times(DRAFT)
    rows = [way_record(way, times, steps, resampling) for way in times]
    return {
        "ways": rows,
        "steps_ms": {
            "target": 1000 * steps.target_s,
            "draft": 1000 * steps.draft_s,
            "draft_two": 1000 * steps.draft_two_s,
            "verify": {str(lookahead): 1000 * seconds for lookahead, seconds in steps.verify_s.items()},
        },
        "best": {kind: best_of(rows, kind) for kind in (DRAFT, LOOKUP)},
        "largest_error": largest_error(rows),
    }


def best_of(rows: Sequence[Record], kind: str) -> int:
    """The lookahead at which a way is fastest, the reading of the prompt included."""
    own = [row for row in rows if row["way"] == kind]
    return max(own, key=lambda row: row["whole"]["speedup"]["value"])["lookahead"]


def largest_error(rows: Sequence[Record]) -> Record:
    """Where prediction is farthest from measured decoding, as a share of the measured speed-up."""
    errors = {
        row["lookahead"]: row["predicted"] / row["decode"]["speedup"]["value"] - 1
        for row in rows
        if row["way"] == DRAFT
    }
    lookahead = max(errors, key=lambda each: abs(errors[each]))
    return {"lookahead": lookahead, "share": errors[lookahead]}
