"""Drafts are ranked by what their acceptance is worth with their step times, and the doubt is that of both."""

import subprocess
import sys

import pytest

from eval.intervals import Resampling
from eval.speedup import (
    StepTimes,
    best_k,
    break_even_alpha,
    drawn_times,
    iid_speedup,
    iid_tau,
    predicted_interval,
    predicted_speedup,
    prospect,
    ranking,
)
from tests.eval import records

RESAMPLING = Resampling(confidence=0.9, num_resamples=500, seed=17)


def rows_and_steps(drafts, wide_ms=0.0, target_ms=40.0, temperature=0.0):
    """Drafts by name: milliseconds of a step, and steps of each prompt of 10 tokens, at k = 1 and 4.

    Of every prompt there are three, so that two are enough for an interval. At temperature 1 nothing is kept.
    """
    rows = [
        records.acceptance(name, temperature, dict.fromkeys((1, 4), counts), [10] * len(counts))
        for name, (_, taken) in drafts.items()
        for counts in ((taken if temperature == 0 else [10] * len(taken)) * 3,)
    ]
    steps = {name: (ms, ms + 1) for name, (ms, _) in drafts.items()}
    return rows, records.latency(target_ms, {1: 44.0, 4: 50.0}, steps, wide_ms)


def ranked(drafts, **how):
    return ranking(*rows_and_steps(drafts, **how), RESAMPLING)


def interval_of(drafts, num_speculative_tokens, **how):
    [row, *_], steps = rows_and_steps(drafts, **how)
    return predicted_interval(row, num_speculative_tokens, steps, RESAMPLING)


def test_a_draft_is_worth_what_the_formula_says():
    [only] = ranked({"a": (4.0, [5, 5, 5])})
    times = StepTimes(0.040, 0.004, 0.005, {1: 0.044, 4: 0.050})
    assert only.num_speculative_tokens == 1  # no more tokens for more drafting
    assert only.speedup == pytest.approx(predicted_speedup(2.0, 0.0, 1, times))
    assert only.interval == pytest.approx((only.speedup, only.speedup))
    assert only.tokens_per_s == pytest.approx(only.speedup / 0.040)
    assert only.first_share == 1.0


def test_the_fastest_comes_first_whatever_the_order():
    drafts = {"slow": (20.0, [5, 5]), "fast": (2.0, [5, 5]), "wrong": (2.0, [9, 9])}
    for names in (("slow", "fast", "wrong"), ("wrong", "slow", "fast")):
        found = ranked({name: drafts[name] for name in names})
        assert [one.draft for one in found] == ["fast", "slow", "wrong"]
        assert [one.first_share for one in found] == [1.0, 0.0, 0.0]


def test_prompts_that_differ_leave_doubt_and_shares_are_those_of_draws():
    """One draft is right on one half of the prompts, the other on the other half: neither is surely faster."""
    found = ranked({"a": (4.0, [3] * 6 + [9] * 6), "b": (4.0, [9] * 6 + [3] * 6)})
    assert sum(one.first_share for one in found) == pytest.approx(1)
    for one in found:
        assert 0.3 < one.first_share < 0.7
        assert one.interval[0] < one.speedup < one.interval[1]


def test_the_same_prompts_are_drawn_for_all_drafts():
    """However much prompts differ, a draft that needs fewer steps on every one of them is always the faster."""
    found = ranked({"a": (4.0, [2, 9, 4, 7]), "b": (4.0, [1, 8, 3, 6])})
    assert (found[0].draft, found[0].first_share) == ("b", 1.0)
    assert found[1].interval[1] > found[0].interval[0]


def test_drawn_times_have_the_interval_of_their_median():
    _, latency = rows_and_steps({"a": (30.0, [5]), "b": (30.0, [5])}, wide_ms=2.0)
    resampling = Resampling(confidence=0.9, num_resamples=4000, seed=1)
    drawn = {name: drawn_times(latency, name, resampling) for name in ("a", "b")}
    inside = [abs(1000 * each.draft_s - 30) < 2 for each in drawn["a"]]
    assert 0.88 < sum(inside) / len(inside) < 0.92
    assert [one.target_s for one in drawn["a"]] == [one.target_s for one in drawn["b"]]
    assert [one.draft_s for one in drawn["a"]] != [one.draft_s for one in drawn["b"]]


def test_a_prediction_from_few_repetitions_has_no_interval():
    """A median of five repetitions has none at 0.95: what is made of it is as little known, and never taken as sure."""
    drafts = {"a": (4.0, [5, 5])}
    assert ranked(drafts, wide_ms=1.0)[0].interval is not None
    assert ranked(drafts, wide_ms=None)[0].interval is None
    assert interval_of(drafts, 1, wide_ms=None) is None


@pytest.mark.parametrize("cost", [0.05, 0.3, 0.9])
def test_a_prospect_is_the_least_alpha_that_pays(cost):
    times = StepTimes(target_s=1.0, draft_s=cost, draft_two_s=cost, verify_s={4: 1.0})
    found = prospect(times)
    assert (found.num_speculative_tokens, found.cost_ratio) == (4, cost)
    assert iid_speedup(found.least_alpha, 4, times) == pytest.approx(1)
    assert found.most == pytest.approx(5 / (4 * cost + 1))


def test_in_a_batch_one_row_that_kept_everything_makes_all_catch_up():
    """At batch 4 a step catches up where any of four rows kept everything, by what a step of two tokens takes more."""
    times = StepTimes(target_s=0.04, draft_s=0.004, draft_two_s=0.02, verify_s={1: 0.044})
    in_batch = predicted_speedup(1.5, 1 - 0.5**4, 1, times)
    assert iid_speedup(0.5, 1, times, 4) == in_batch < iid_speedup(0.5, 1, times)
    assert prospect(times, 4).least_alpha > prospect(times).least_alpha
    assert prospect(times, 4).most == prospect(times).most


def test_what_was_scored_is_ranked_at_the_batch_that_was_timed():
    [row], steps = rows_and_steps({"a": (4.0, [5, 5])}, wide_ms=0.0)
    halves = (each.model_copy(update={"fully_accepted": each.steps / 2}) for each in row.by_k)
    row = row.model_copy(update={"by_k": tuple(halves)})
    [alone], [in_batch] = (
        ranking([row], steps, RESAMPLING),
        ranking([row], steps.model_copy(update={"batch": 8}), RESAMPLING),
    )
    assert in_batch.speedup < alone.speedup
    assert in_batch.interval[1] < alone.interval[0]


MEASURED = StepTimes(target_s=20.3e-3, draft_s=5.5e-3, draft_two_s=6.5e-3, verify_s={2: 20.6e-3, 4: 21.1e-3})


def ideal_times(cost_ratio, num_speculative_tokens):
    """Leviathan's assumptions: verifying many tokens costs as much as one step, and so does catching up."""
    return StepTimes(target_s=1.0, draft_s=cost_ratio, draft_two_s=cost_ratio, verify_s={num_speculative_tokens: 1.0})


def speedups(alpha, cost_ratio, limit=40):
    return {g: iid_speedup(alpha, g, ideal_times(cost_ratio, g)) for g in range(1, limit + 1)}


@pytest.mark.parametrize(
    ("alpha", "num_speculative_tokens", "cost_ratio", "tau", "speedup", "best", "best_speedup"),
    [
        (0.8, 4, 0.05, 3.3616, 2.8013, 8, 3.0921),
        (0.6, 5, 0.10, 2.3834, 1.5889, 3, 1.6738),
        (0.9, 8, 0.02, 6.1258, 5.2809, 19, 6.3654),
        (0.5, 3, 0.25, 1.8750, 1.0714, 1, 1.2000),
        (0.7, 4, 1.1, 2.7731, 0.5135, 1, 0.8095),
    ],
)
def test_golden_numbers(alpha, num_speculative_tokens, cost_ratio, tau, speedup, best, best_speedup):
    assert iid_tau(alpha, num_speculative_tokens) == pytest.approx(tau, abs=5e-5)
    found = speedups(alpha, cost_ratio)
    assert found[num_speculative_tokens] == pytest.approx(speedup, abs=5e-5)
    assert best_k(found) == best
    assert found[best] == pytest.approx(best_speedup, abs=5e-5)


@pytest.mark.parametrize(("tau", "draft_ms", "tokens_per_s"), [(3.70, 6.69, 32.6), (3.81, 13.13, 23.1)])
def test_golden_throughput_of_a_wide_and_a_deep_draft(tau, draft_ms, tokens_per_s):
    """reference/method.md 5: k = 8, a verification of 60.1 ms; what the paper measured of both drafts."""
    times = StepTimes(target_s=1.0, draft_s=draft_ms / 1000, draft_two_s=draft_ms / 1000, verify_s={8: 0.0601})
    assert predicted_speedup(tau, 0.0, 8, times) / times.target_s == pytest.approx(tokens_per_s, abs=0.05)


def test_break_even_of_a_slow_draft():
    """reference/conventions.md 3.5: at c = 0.596 k = 5 needs alpha 0.832; below 0.825 k = 1 is best."""
    assert break_even_alpha(5, ideal_times(0.596, 5)) == pytest.approx(0.832, abs=5e-4)
    assert [best_k(speedups(alpha, 0.596)) for alpha in (0.3, 0.596, 0.7, 0.825)] == [1, 1, 1, 1]
    needed = {g: break_even_alpha(g, ideal_times(0.596, g)) for g in range(1, 9)}
    assert min(needed, key=needed.__getitem__) == 1


@pytest.mark.parametrize("times", [ideal_times(0.2, 4), ideal_times(0.596, 4), MEASURED])
def test_at_the_break_even_alpha_the_speedup_is_one(times):
    alpha = break_even_alpha(4, times)
    assert iid_speedup(alpha, 4, times) == pytest.approx(1)
    assert iid_speedup(alpha + 0.01, 4, times) > 1


@pytest.mark.parametrize("cost_ratio", [1.0, 1.1, 5.0])
def test_no_alpha_pays_for_a_draft_as_slow_as_the_target(cost_ratio):
    assert break_even_alpha(3, ideal_times(cost_ratio, 3)) is None


def test_the_two_token_step_is_paid_once_per_fully_accepted_round():
    expected = 3.0 * 20.3 / (4 * 5.5 + 0.25 * (6.5 - 5.5) + 21.1)
    assert predicted_speedup(3.0, 0.25, 4, MEASURED) == pytest.approx(expected)


def test_the_module_needs_no_torch():
    code = "import sys, eval.speedup; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
