"""The law of budgets: what it says at points known by hand, and that a fit finds the law that made the figures."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from distill.budget.law import BOUNDS, IDS_UNIT, LEAST_CELLS, TOKENS_UNIT, VARIED_BY, Budget, Law, fit, left_out

LAW = Law(lookahead=2, level=-1.2, growth=0.3, deeper=0.1, depth=0.15, ids=0.05, reuse=2.5, text=0.2)
PLAIN = Budget(answer_tokens=TOKENS_UNIT, epochs=1, text_tokens=0, layers=1, ids=IDS_UNIT)
BUDGETS = [
    Budget(tokens, epochs, text, layers, ids)
    for (tokens, epochs), (text, layers, ids) in product(
        [(20_000, 1), (20_000, 4), (100_000, 1), (400_000, 2)],
        [(0, 1, 4096), (200_000, 1, 4096), (0, 4, 4096), (0, 1, 1024)],
    )
]
NOISE = 0.01  # of a measured tau, about what 64 prompts leave


def noisy(seed: int) -> list[float]:
    return [
        LAW.tau(one) + float(np.random.default_rng(seed + place).normal(0, NOISE)) for place, one in enumerate(BUDGETS)
    ]


def test_the_level_is_what_one_layer_reads_off_at_the_units():
    assert LAW.tau(PLAIN) == pytest.approx(1 + 2 / (1 + math.exp(1.2)))


@pytest.mark.parametrize(
    ("change", "power"),
    [
        ({"answer_tokens": 2 * TOKENS_UNIT}, 0.3 * math.log(2)),
        ({"layers": 4}, 0.15 * math.log(4)),
        ({"layers": 4, "answer_tokens": 2 * TOKENS_UNIT}, 0.15 * math.log(4) + (0.3 + 0.1 * math.log(4)) * math.log(2)),
        ({"ids": 2 * IDS_UNIT}, 0.05 * math.log(2)),
        ({"epochs": 3}, 0.3 * math.log(1 + 2.5 * (1 - math.exp(-2 / 2.5)))),
        ({"text_tokens": 5 * TOKENS_UNIT}, 0.3 * math.log(2)),
    ],
)
def test_each_thing_enters_as_its_formula_says(change, power):
    assert log_odds(LAW.tau(replace(PLAIN, **change))) - log_odds(LAW.tau(PLAIN)) == pytest.approx(power)


def log_odds(tau: float) -> float:
    """Of the share of two proposals that is kept."""
    return math.log((tau - 1) / (3 - tau))


def test_no_budget_keeps_more_than_is_proposed():
    assert LAW.tau(replace(PLAIN, answer_tokens=1e30)) <= 3
    assert LAW.tau(replace(PLAIN, answer_tokens=0)) >= 1


def test_readings_are_worth_less_and_less_and_never_more_than_their_limit():
    worth = [LAW.tokens(replace(PLAIN, epochs=epochs)) / TOKENS_UNIT for epochs in (1, 2, 3, 5, 1000)]
    gained = np.diff(worth)
    assert worth[0] == 1
    assert all(gained > 0)
    assert gained[0] < 1
    assert gained[1] < gained[0]
    assert worth[-1] == pytest.approx(1 + LAW.reuse)


def test_a_fit_finds_the_law_that_made_the_figures():
    found = fit(BUDGETS, [LAW.tau(one) for one in BUDGETS], 2)
    assert vars(found) == pytest.approx(vars(LAW), abs=1e-3)


def test_what_nothing_varied_is_not_fitted():
    alike = [replace(one, layers=2, ids=4096, text_tokens=0) for one in BUDGETS]
    found = fit(alike, [LAW.tau(one) for one in alike], 2)
    assert (found.depth, found.deeper, found.ids, found.text) == (0, 0, 0, 0)
    assert [found.tau(one) for one in alike] == pytest.approx([LAW.tau(one) for one in alike], abs=1e-4)


def test_each_number_of_the_law_is_looked_for_and_but_the_level_varied_by_something():
    assert set(BOUNDS) == set(vars(LAW)) - {"lookahead"} == {"level", *VARIED_BY}
    assert set(VARIED_BY.values()) == set(vars(PLAIN))


def test_few_trainings_are_refused():
    few = BUDGETS[: LEAST_CELLS - 1]
    with pytest.raises(ValueError, match="8 trainings at least, got 7"):
        fit(few, [LAW.tau(one) for one in few], 2)


def test_trainings_left_out_are_foretold_far_better_than_by_a_constant_where_there_is_a_law():
    """Over draws of the noise: the worst miss of twelve is within five noises, and a tenth of the constant's mean."""
    found = [left_out(BUDGETS, noisy(seed), 2) for seed in range(0, 2000, 100)]
    assert np.mean([one.worst for one in found]) < 5 * NOISE
    assert max(one.share_of_constant for one in found) < 0.2


def test_noise_without_a_law_is_not_foretold():
    shares = []
    for seed in range(10):
        taus = list(1.3 + np.abs(np.random.default_rng(seed).normal(0, 0.1, len(BUDGETS))))
        shares.append(left_out(BUDGETS, taus, 2).share_of_constant)
    assert np.mean(shares) > 0.9


def test_what_is_left_out_has_no_part_in_what_foretells_it():
    taus = [LAW.tau(one) for one in BUDGETS]
    spoilt = [taus[0] + 1, *taus[1:]]
    assert left_out(BUDGETS, spoilt, 2).predicted[0] == pytest.approx(taus[0], abs=1e-3)
    assert left_out(BUDGETS, spoilt, 2).missed[0] == pytest.approx(1, abs=1e-3)
