"""Counts by hand, and intervals whose truth is known."""

from itertools import product

import numpy as np
import pytest
from scipy.special import logit
from scipy.stats import t

from eval.intervals import (
    Resampling,
    degrees_of_freedom,
    paired_ratio_difference,
    paired_ratio_quotient,
    paired_ratio_quotients,
    pooled_ratio,
    sign_flip_p,
    simultaneous_bound,
    t_bound,
)
from eval.replay import ReplayCounts, count_trace, pool, tau

RESAMPLING = Resampling(confidence=0.95, num_resamples=2000, seed=17)
# Ten tokens at num_speculative_tokens 3: [a a a t] [t] [a t] [a a t]. The last step has room for two.
TRACE = [(0, 3), (4, 0), (5, 1), (7, 2)]


def test_the_targets_own_token_counts_in_tau_and_nowhere_else():
    counts = count_trace(TRACE, num_tokens=10, num_speculative_tokens=3)
    assert counts == ReplayCounts(steps=4, possible=(4, 4, 3), reached=(4, 3, 1), accepted=(3, 2, 1))
    assert (counts.accepted_tokens, counts.proposed_tokens, counts.emitted_tokens) == (6, 11, 10)
    assert (counts.fully_accepted_steps, counts.histogram) == (1, (1, 1, 1, 1))
    assert tau(counts) == 10 / 4


def test_a_text_of_one_token_has_a_step_but_no_proposal():
    counts = count_trace([(0, 0)], num_tokens=1, num_speculative_tokens=4)
    assert counts == ReplayCounts(steps=1, possible=(0,) * 4, reached=(0,) * 4, accepted=(0,) * 4)
    assert tau(counts) == 1
    assert counts.proposed_tokens == 0


def test_pooled_tau_weights_steps_and_not_prompts():
    long = count_trace([(t, 0) for t in range(9)], num_tokens=9, num_speculative_tokens=3)
    short = count_trace([(0, 2)], num_tokens=3, num_speculative_tokens=3)
    assert pool([long, short]) == ReplayCounts(steps=10, possible=(9, 8, 6), reached=(9, 1, 0), accepted=(1, 1, 0))
    assert tau(pool([long, short])) == pytest.approx(12 / 10)
    assert (tau(long) + tau(short)) / 2 == 2


def test_the_interval_of_a_share_is_students_on_the_logit():
    rng = np.random.default_rng(3)
    above, below = rng.gamma(2, size=25), 20.0 + rng.gamma(5, size=25)
    estimate = pooled_ratio(above.tolist(), below.tolist(), RESAMPLING)
    without = [np.delete(above, place).sum() / np.delete(below, place).sum() for place in range(25)]
    se = np.std(without) * 24**0.5 / (estimate.value * (1 - estimate.value))
    reach = t.ppf(0.975, degrees_of_freedom(below[None])) * se
    assert logit(estimate.interval) - logit(estimate.value) == pytest.approx([-reach, reach])


def test_a_ratio_above_one_is_the_reciprocal_of_a_share():
    tokens, steps = [10.0, 12.0, 9.0, 30.0, 8.0, 11.0, 10.0], [4.0, 9.0, 5.0, 11.0, 8.0, 7.0, 6.0]
    tau, share = pooled_ratio(tokens, steps, RESAMPLING), pooled_ratio(steps, tokens, RESAMPLING)
    assert (tau.value, *tau.interval) == pytest.approx((1 / share.value, *(1 / end for end in share.interval[::-1])))
    assert tau.interval[0] > 1


def test_degrees_of_freedom_are_those_of_equal_units_and_fewer_otherwise():
    assert degrees_of_freedom(np.ones((1, 12))) == pytest.approx(11)
    assert degrees_of_freedom(np.array([[10.0] * 2 + [1] * 10])) == pytest.approx(2.87, abs=0.01)
    assert degrees_of_freedom(np.array([[1e6, 1, 1, 1, 1, 1]])) == 1


@pytest.mark.parametrize("value", [0, 4])
def test_an_interval_at_the_end_of_the_range_has_no_width(value):
    assert pooled_ratio([value] * 8, [4] * 8, RESAMPLING).interval == (value / 4, value / 4)


def test_prompts_in_which_nothing_was_counted_are_no_units():
    estimate = pooled_ratio([1] * 6 + [0] * 54, [4] * 6 + [0] * 54, RESAMPLING)
    assert estimate.interval == pytest.approx((0.25, 0.25))


@pytest.mark.parametrize("num_prompts", [1, 2, 5])
def test_few_prompts_have_no_interval(num_prompts):
    """Five lie on one side of the truth in 1 of 16 cases: more than 5 %. Prompts with nothing counted do not help."""
    rows = [3, 1, 2, 3, 1][:num_prompts], [4] * num_prompts
    padded = tuple(column + [0] * 20 for column in rows)
    for found in (
        pooled_ratio(*rows, RESAMPLING),
        pooled_ratio(*padded, RESAMPLING),
        paired_ratio_difference(padded, padded, RESAMPLING),
        paired_ratio_quotient(rows, rows, RESAMPLING),
    ):
        assert found.interval is None
    assert pooled_ratio(*rows, RESAMPLING).value == sum(rows[0]) / sum(rows[1])
    assert pooled_ratio([3, 1, 2, 3, 1, 2], [4] * 6, RESAMPLING).interval is not None


def test_pairing_takes_the_prompts_own_difficulty_out_of_the_difference():
    base = np.linspace(0.1, 0.9, 40) * 100
    first, second = (list(base + 5), [100] * 40), (list(base), [100] * 40)
    estimate = paired_ratio_difference(first, second, RESAMPLING)
    assert estimate.value == pytest.approx(0.05)
    assert estimate.interval == pytest.approx((0.05, 0.05))
    low, high = pooled_ratio(*first, RESAMPLING).interval
    assert high - low > 0.1


def test_influence_is_what_leaving_a_prompt_out_does():
    rng = np.random.default_rng(1)
    columns = rng.uniform(1, 1.2, (4, 200))
    pair = tuple(map(tuple, columns[:2])), tuple(map(tuple, columns[2:]))
    whole = paired_ratio_quotient(*pair, RESAMPLING)
    logs = []
    for place in range(200):
        (a, b), (c, d) = (np.delete(columns[half : half + 2], place, axis=1).sum(axis=1) for half in (0, 2))
        logs.append(np.log(a / b / (c / d)))
    jackknife = np.std(logs) * 199 / 200**0.5
    reach = np.log(whole.interval[1] / whole.value)
    assert reach == pytest.approx(t.ppf(0.975, 199) * jackknife, rel=0.01)
    assert np.log(whole.value / whole.interval[0]) == pytest.approx(reach)


def test_several_quotients_hold_together_and_one_alone_as_ever():
    rng = np.random.default_rng(2)
    alone = [1.0] * 9, [1] * 9
    others = [(rng.uniform(0.8, 1.2, 9).tolist(), [1] * 9) for _ in range(5)]
    one = paired_ratio_quotient(alone, others[0], RESAMPLING)
    together = paired_ratio_quotients([(alone, other) for other in others], RESAMPLING)
    assert together[0].value == one.value
    (low, high), (lowest, highest) = one.interval, together[0].interval
    assert lowest < low < high < highest
    copies = paired_ratio_quotients([(alone, others[0])] * 5, RESAMPLING)
    assert np.log(copies[0].interval[1] / one.value) == pytest.approx(np.log(high / one.value), rel=0.1)
    bonferroni = t.ppf(1 - 0.025 / 5, 8) / t.ppf(0.975, 8)
    assert np.log(highest / one.value) < bonferroni * np.log(high / one.value)


UNITS, DRAWS = 20, 4000


def bound(*quantities):
    return simultaneous_bound(np.array(quantities), UNITS - 1, 0.95, num_draws=DRAWS, seed=3)


def test_of_a_single_quantity_nothing_is_drawn():
    """Drawn, it would differ by the noise of the draws."""
    values = np.random.default_rng(1).normal(size=UNITS)
    assert bound(values) == t_bound(UNITS - 1, 0.95)


def test_several_quantities_need_more_the_less_they_are_alike():
    first, second = np.random.default_rng(2).normal(size=(2, UNITS))
    least = t_bound(UNITS - 1, 0.95)
    assert bound(first, first) == pytest.approx(least, rel=0.05)
    assert bound(first, second) > 1.05 * least
    assert bound(first, second) <= t_bound(UNITS - 1, 1 - 0.05 / 2) * 1.05  # Bonferroni bounds it


def test_the_sign_flip_p_is_the_share_of_flips_as_extreme():
    gains = np.array([3, -1, 4, 2, 0, 5])
    sums = [np.dot(signs, gains) for signs in product((-1, 1), repeat=6)]
    assert sign_flip_p(gains, RESAMPLING) == pytest.approx(np.mean(np.abs(sums) >= gains.sum()))
    assert sign_flip_p(-gains, RESAMPLING) == sign_flip_p(gains, RESAMPLING)


def test_no_gain_is_no_evidence():
    assert sign_flip_p(np.zeros(4), RESAMPLING) == 1
    assert sign_flip_p(np.array([3]), RESAMPLING) == 1


def test_many_prompts_are_flipped_at_random_and_repeatably():
    gains = np.random.default_rng(0).normal(0.3, 1, 40)
    p = sign_flip_p(gains, RESAMPLING)
    assert p == sign_flip_p(gains, RESAMPLING)
    assert p != sign_flip_p(gains, Resampling(confidence=0.95, num_resamples=2000, seed=18))
    few = sign_flip_p(gains, Resampling(confidence=0.95, num_resamples=10, seed=17))
    assert few * 11 == pytest.approx(round(few * 11))  # a share of ten flips and the data themselves
    flips = np.random.default_rng(1).choice((-1, 1), (100_000, 40)) @ gains
    assert p == pytest.approx(np.mean(np.abs(flips) >= gains.sum()), abs=0.03)
