"""What a budget is worth and takes, and the cheapest that is worth enough: laws, and a search that has no equal."""

from dataclasses import replace
from itertools import product

import pytest

from distill.budget.costs import Costs, costs_of
from distill.budget.law import Budget, Law
from distill.budget.mixes import Laws, cheapest, doubled, fastest_within, full_rate, valued
from distill.budget.record import SCHEMA, Training, Trainings
from eval.acceptance.speedup import StepTimes, iid_tau, predicted_speedup

LAW = Law(lookahead=1, level=-0.6, growth=0.3, deeper=0.0, depth=0.1, ids=0.0, reuse=3.0, text=0.2)
LAWS = Laws({1: LAW, 2: replace(LAW, lookahead=2, level=-0.9)}, most_tokens=4e5, most_epochs=4, most_text=4e5)
STEPS = StepTimes(target_s=1.0, draft_s=0.06, draft_two_s=0.07, verify_s={1: 1.05, 2: 1.15})
COSTS = Costs(answers_per_s=240, fixed_s=1e-4, layer_s=1e-4, id_s=1e-8, text_share=0.5)
SHAPE = Budget(0, 1, 0, layers=1, ids=4096)


def test_a_mix_is_worth_its_best_lookahead():
    budget = replace(SHAPE, answer_tokens=2e5, epochs=2)
    found = valued(budget, LAWS, STEPS, COSTS)
    by_hand = {
        each: predicted_speedup(law.tau(budget), full_rate(law.tau(budget), each), each, STEPS)
        for each, law in LAWS.by_lookahead.items()
    }
    assert found.speedup == max(by_hand.values())
    assert by_hand[found.lookahead] == found.speedup
    assert found.tau == LAWS.by_lookahead[found.lookahead].tau(budget)


def test_seconds_are_of_answers_written_once_and_read_so_often_and_of_text():
    step_s = 1e-4 + 2 * 1e-4 + 8192 * 1e-8
    budget = Budget(1000, 3, 500, layers=2, ids=8192)
    assert COSTS.seconds(budget) == pytest.approx(1000 / 240 + (3000 + 0.5 * 500) * step_s)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.9])
def test_full_rounds_are_those_of_independent_tokens(alpha):
    assert full_rate(iid_tau(alpha, 3), 3) == pytest.approx(alpha**3)


def test_the_cheapest_mix_is_worth_it_and_no_mix_of_a_grid_is_cheaper():
    goal = 1.3
    found = cheapest(SHAPE, goal, LAWS, STEPS, COSTS)
    assert found is not None
    assert goal <= found.speedup < goal + 1e-3
    grid = product([10 ** (3 + place / 50) for place in range(200)], (1, 2, 3, 4), (0, 1e5, 2e5, 4e5))
    worth = [valued(replace(SHAPE, answer_tokens=a, epochs=e, text_tokens=t), LAWS, STEPS, COSTS) for a, e, t in grid]
    assert found.seconds <= min(one.seconds for one in worth if one.speedup >= goal)


def test_what_nothing_reaches_has_no_mix():
    flat = Laws({1: replace(LAW, growth=0.0)}, 4e5, 4, 4e5)
    assert cheapest(SHAPE, 1.5, flat, STEPS, COSTS) is None


def test_what_is_worth_it_from_the_start_takes_the_fewest_tokens():
    found = cheapest(SHAPE, 0.5, LAWS, STEPS, COSTS)
    assert found is not None
    assert found.budget == replace(SHAPE, answer_tokens=1000)


def test_within_minutes_the_time_is_used_and_more_of_it_is_never_worse():
    shapes = {"one": SHAPE, "four": replace(SHAPE, layers=4)}
    steps = {"one": STEPS, "four": replace(STEPS, draft_s=0.2, draft_two_s=0.22)}
    speeds = []
    for seconds in (60.0, 300.0, 1200.0):
        found = fastest_within(shapes, seconds, LAWS, steps, COSTS)
        assert found is not None
        name, mix = found
        assert name == "one"
        assert mix.seconds == pytest.approx(seconds)
        speeds.append(mix.speedup)
    assert speeds == sorted(speeds)
    assert fastest_within(shapes, 0.1, LAWS, steps, COSTS) is None


def test_doubling_doubles_one_thing():
    own = Budget(1000, 3, 0, 1, 4096)
    assert dict(doubled(own)) == {
        "twice the answers": replace(own, answer_tokens=2000),
        "twice the readings": replace(own, epochs=6),
    }


def test_costs_are_those_that_made_the_seconds():
    budgets = [
        Budget(tokens, epochs, text, layers, ids)
        for (tokens, epochs), (layers, ids), text in product(
            [(2e4, 1), (2e5, 2)], [(1, 1024), (2, 4096), (4, 16_384)], [0, 1e5]
        )
    ]
    trainings = [
        Training(
            asked=one,
            budget=one,
            answers_s=one.answer_tokens * one.epochs * COSTS.step_s(one.layers, one.ids),
            text_s=0.5 * one.text_tokens * COSTS.step_s(one.layers, one.ids),
            taus=(1.2,),
            greedy_match=0.2,
        )
        for one in budgets
    ]
    found = Trainings(
        schema=SCHEMA,
        target="t",
        recipe="r",
        inputs="i",
        prompts=8,
        processor="p",
        threads=1,
        torch="2",
        precision="fp32",
        answers_per_s=240,
        tokens_per_answer=100,
        commit=None,
        created="now",
        trainings=tuple(trainings),
    )
    assert vars(costs_of(found)) == pytest.approx(vars(COSTS), rel=1e-6)
