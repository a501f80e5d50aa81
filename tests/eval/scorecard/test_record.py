"""Times and forecasts of scorecard.json from figures small enough to work out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from eval.decoding.sampling import Decoded, VerificationStep
from eval.intervals import Resampling
from eval.replay import ResponseScore, count_trace
from eval.scorecard import forecast, speedup_row
from eval.scorecard_schema import LOOKUP, Spent, SpentByBoth, StepCounts
from eval.speedup import StepTimes, break_even_alpha
from eval.wall_clock import DRAFT, LiveResponse, LiveWay, best_lookup, compare_with_replay, live_record
from tests.eval.scorecard.test_acceptance_record import GOOD

RESAMPLING = Resampling(confidence=0.95, num_resamples=100, seed=17)
TIMES = StepTimes(target_s=20.0, draft_s=4.0, draft_two_s=5.0, verify_s={2: 22.0})


def test_forecasts_by_measured_terms():
    row, tau = forecast(GOOD, 2, TIMES), 10 / 7
    assert row.predicted == pytest.approx(tau * 20 / (2 * 4 + 1 / 7 * (5 - 4) + 22))
    assert row.break_even_alpha == break_even_alpha(2, TIMES)
    assert speedup_row(GOOD, TIMES).by_k == (row,)


def test_the_best_lookahead_is_chosen_by_measured_terms():
    """Rounds keep one token each, however many are proposed; independent accepts at alpha 1 would keep all."""
    counts = {g: count_trace([(0, 1), (2, 1)], num_tokens=4, num_speculative_tokens=g) for g in (1, 2)}
    times = replace(TIMES, verify_s={1: 20.0, 2: 20.0})
    record = speedup_row(replace(GOOD, responses=[ResponseScore(0, np.ones(4), 4.0, 4.0, 0, 0, counts)]), times)
    assert (record.best_k, record.predicted) == (1, 2 * 20 / (4 + 1 * (5 - 4) + 20))
    assert record.break_even_alpha == break_even_alpha(1, times)


def test_time_of_the_live_loop_is_told_by_part_and_per_token():
    steps = (
        VerificationStep(0, 2, 2, 1, 1, draft_s=0.25, verify_s=0.5),
        VerificationStep(2, 2, 1, 1, 1, draft_s=0.25, verify_s=1.0),
    )
    text = Decoded((7, 8, 9, 10), steps, prefill_s=0.125, decode_s=2.0)
    live = [LiveResponse(text.token_ids, replace(text, steps=(), decode_s=3.0), text, 2, {LOOKUP: text})] * 2
    agreement = compare_with_replay(live, [one.counts for one in live], is_greedy=True)
    ways, how = dict.fromkeys((DRAFT, LOOKUP), LiveWay(None, 2)), {"predicted": 1.5, "resampling": RESAMPLING}
    record = live_record("good", live, ways, agreement, temperature=0.0, **how)
    assert record.plain == Spent(tokens=8, prefill_s=0.25, decode_s=6.0, ms_per_token=750)
    spent = {"tokens": 8, "prefill_s": 0.25, "decode_s": 4.0, "ms_per_token": 500}
    assert record.speculative == SpentByBoth(**spent, draft_s=1.0, verify_s=3.0)
    assert record.agreement.loop == StepCounts(steps=4, accepted=4, proposed=6)


def test_prompt_lookup_is_fastest_where_it_is_right_and_costs_a_plain_step_where_it_finds_nothing():
    """The text repeats a, b, c: once it does, every looked-up token is accepted, so the longest step is the fastest."""
    steps = replace(TIMES, verify_s={1: 20.0, 2: 22.0, 4: 26.0})
    assert best_lookup([((1, 2, 3), (1, 2, 3) * 6)], steps, max_new_tokens=18) == 4
    assert best_lookup([((1, 2), tuple(range(10, 28)))], steps, max_new_tokens=18) == 1  # nothing found: all are equal
    wrong = ((5, 6, 5, 7, 5, 8), (5, 9, 5, 1, 5, 2, 5, 3))  # what follows 5 is always new
    assert best_lookup([wrong], steps, max_new_tokens=8) == 1
