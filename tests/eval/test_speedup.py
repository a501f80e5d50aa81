"""Golden numbers of reference/evaluation.md 1.4 and reference/conventions.md 3.5, and what must hold for any times."""

import subprocess
import sys

import pytest

from eval.speedup import (
    StepTimes,
    best_k,
    break_even_alpha,
    iid_speedup,
    iid_tau,
    predicted_speedup,
)

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
