"""What a scorecard says of step times and what they promise. Pure; docs/scoring.md explains it."""

from eval.acceptance.counts import ratio, tau
from eval.acceptance.draft_scores import DraftScore
from eval.acceptance.speedup import (
    StepTimes,
    best_lookahead,
    break_even_alpha,
    ideal_times,
    iid_speedup,
    memory_bound_speedup,
    predicted_speedup,
)
from eval.latency.measure import Latency
from eval.records.scorecard_speeds import Forecast, SpeedupRow
from eval.records.steps import DraftSteps, ScoredLatency, VerifyStep


def scored_latency(latency: Latency, *, batch: int = 1) -> ScoredLatency:
    """Step times of the target and every draft."""
    return ScoredLatency(
        batch=batch,
        context_tokens=latency.context,
        repeats=latency.repeats,
        warm_up_repeats=latency.warm_up_repeats,
        settled=latency.is_settled,
        target=latency.target,
        verify=tuple(VerifyStep(lookahead=lookahead, **vars(time)) for lookahead, time in latency.verify.items()),
        drafts=tuple(
            DraftSteps(
                draft=name,
                cost_ratio=latency.step_times(name).cost_ratio,
                one_token=latency.draft(name),
                two_tokens=latency.draft_two(name),
            )
            for name in latency.drafts
        ),
        evidence=latency.evidence,
    )


def speedup_row(score: DraftScore, times: StepTimes, bytes_over_target: float | None) -> SpeedupRow:
    """What the acceptance of one draft at one temperature is worth with these step times, and by bytes alone."""
    alpha = ratio(*(sum(column) for column in score.alpha_columns()))
    assert alpha is not None
    rows = tuple(forecast(score, lookahead, alpha, times, bytes_over_target) for lookahead in score.lookaheads)
    best = best_lookahead({row.lookahead: row.predicted for row in rows})
    [best_row] = [row for row in rows if row.lookahead == best]
    return SpeedupRow(
        draft=score.draft,
        temperature=score.temperature,
        rule=score.rule,
        cost_ratio=times.cost_ratio,
        byte_ratio=bytes_over_target,
        best_lookahead=best,
        predicted=best_row.predicted,
        break_even_alpha=best_row.break_even_alpha,
        lookahead=rows,
    )


def forecast(
    score: DraftScore, lookahead: int, alpha: float, times: StepTimes, bytes_over_target: float | None
) -> Forecast:
    """Speed-up at one lookahead by measured terms, by formulas that assume independent accepts, and by bytes alone."""
    counts = score.pooled(lookahead)
    full_rate, per_round = counts.fully_accepted_rounds / counts.rounds, tau(counts)
    return Forecast(
        lookahead=lookahead,
        predicted=predicted_speedup(per_round, full_rate, lookahead, times),
        iid=iid_speedup(alpha, lookahead, times),
        leviathan=iid_speedup(alpha, lookahead, ideal_times(times.cost_ratio, lookahead)),
        memory_bound=None
        if bytes_over_target is None
        else memory_bound_speedup(per_round, lookahead, bytes_over_target),
        break_even_alpha=break_even_alpha(lookahead, times),
    )
