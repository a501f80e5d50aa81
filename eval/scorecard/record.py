"""What scorecard.json says of time: steps, what they promise, and the live loop. Pure; docs/scoring.md explains it."""

from collections.abc import Sequence
from typing import Any

from eval.acceptance.counts import Counts, ratio, tau
from eval.acceptance.estimates import Resampling
from eval.acceptance.speedup import (
    StepTimes,
    best_lookahead,
    break_even_alpha,
    ideal_times,
    iid_speedup,
    memory_bound_speedup,
    predicted_speedup,
)
from eval.decoding.texts import Decoded
from eval.latency.measure import Latency
from eval.latency.timing import StepTime
from eval.scorecard.acceptance_record import estimate_record
from eval.scorecard.live import Agreement, LiveAnswer, decoding_speedup, whole_speedup
from eval.scorecard.scores import DraftScore

Record = dict[str, Any]


def latency_record(latency: Latency) -> Record:
    """Step times of the target and every draft."""
    return {
        "batch": 1,
        "context_tokens": latency.context,
        "repeats": latency.repeats,
        "warm_up_repeats": latency.warm_up_repeats,
        "settled": latency.is_settled,
        "target": step_record(latency.target),
        "verify": [{"lookahead": lookahead, **step_record(time)} for lookahead, time in latency.verify.items()],
        "drafts": [
            {
                "draft": name,
                "cost_ratio": latency.step_times(name).cost_ratio,
                "one_token": step_record(latency.draft(name)),
                "two_tokens": step_record(latency.draft_two(name)),
            }
            for name in latency.drafts
        ],
    }


def speedup_record(score: DraftScore, times: StepTimes, bytes_over_target: float | None) -> Record:
    """What the acceptance of one draft at one temperature is worth with these step times, and by bytes alone."""
    alpha = ratio(*(sum(column) for column in score.alpha_columns()))
    assert alpha is not None
    rows = [predicted_record(score, lookahead, alpha, times, bytes_over_target) for lookahead in score.lookaheads]
    best = best_lookahead({row["lookahead"]: row["predicted"] for row in rows})
    [best_row] = [row for row in rows if row["lookahead"] == best]
    return {
        "draft": score.draft,
        "temperature": score.temperature,
        "rule": score.rule,
        "cost_ratio": times.cost_ratio,
        "byte_ratio": bytes_over_target,
        "best_lookahead": best,
        "predicted": best_row["predicted"],
        "break_even_alpha": best_row["break_even_alpha"],
        "lookahead": rows,
    }


def predicted_record(
    score: DraftScore, lookahead: int, alpha: float, times: StepTimes, bytes_over_target: float | None
) -> Record:
    """Speed-up at one lookahead by measured terms, by formulas that assume independent accepts, and by bytes alone."""
    counts = score.pooled(lookahead)
    full_rate, per_round = counts.fully_accepted_rounds / counts.rounds, tau(counts)
    return {
        "lookahead": lookahead,
        "predicted": predicted_speedup(per_round, full_rate, lookahead, times),
        "iid": iid_speedup(alpha, lookahead, times),
        "leviathan": iid_speedup(alpha, lookahead, ideal_times(times.cost_ratio, lookahead)),
        "memory_bound": None
        if bytes_over_target is None
        else memory_bound_speedup(per_round, lookahead, bytes_over_target),
        "break_even_alpha": break_even_alpha(lookahead, times),
    }


def live_record(
    draft: str, answers: Sequence[LiveAnswer], agreement: Agreement, predicted: float, resampling: Resampling
) -> Record:
    """Measured speed-up of the live loop, and whether it did what the replay says."""
    rounds = [one for answer in answers for one in answer.speculative.rounds]
    return {
        "draft": draft,
        "temperature": 0.0,
        "lookahead": answers[0].lookahead,
        "prompts": len(answers),
        "speedup": estimate_record(whole_speedup(answers, resampling)),
        "decoding_speedup": estimate_record(decoding_speedup(answers, resampling)),
        "predicted_decoding_speedup": predicted,
        "plain": spent_record([answer.plain for answer in answers]),
        "speculative": {
            **spent_record([answer.speculative for answer in answers]),
            "draft_s": sum(one.draft_s for one in rounds),
            "verify_s": sum(one.verify_s for one in rounds),
        },
        "agreement": {
            "exact": agreement.is_exact,
            "same_text": agreement.same_text,
            "same_as_recorded": agreement.same_as_recorded,
            "same_counts": agreement.same_counts,
            "loop": counts_record(agreement.loop),
            "replay": counts_record(agreement.replay),
        },
    }


def spent_record(texts: Sequence[Decoded]) -> Record:
    """Time spent on some texts."""
    num_tokens = sum(len(text.token_ids) for text in texts)
    decode_s = sum(text.decode_s for text in texts)
    return {
        "tokens": num_tokens,
        "prefill_s": sum(text.prefill_s for text in texts),
        "decode_s": decode_s,
        "ms_per_token": 1000 * decode_s / num_tokens,
    }


def counts_record(counts: Counts) -> Record:
    """The counts that loop and replay must share."""
    return {"rounds": counts.rounds, "accepted": counts.accepted_tokens, "proposed": counts.proposed_tokens}


def step_record(time: StepTime) -> Record:
    """One kind of step, in milliseconds."""
    return {
        "median_ms": 1000 * time.median_s,
        "interval_ms": None if time.interval_s is None else [1000 * bound for bound in time.interval_s],
        "p10_ms": 1000 * time.percentiles_s[10],
        "p90_ms": 1000 * time.percentiles_s[90],
    }
