"""What successive halving loses, simulated: the page has what the long simulation found, and a short one agrees."""

import json
from pathlib import Path

import pytest

from tests.simulations import halving
from tests.simulations.halving import BEGIN, END, RESULTS, Outcome, halving_outcomes, with_table
from tests.simulations.latency import read_series

DOC = Path(__file__).parents[2] / "docs" / "benchmarks.md"
RULE = "better half and rivals"


@pytest.fixture(scope="module")
def found():
    record = json.loads((RESULTS / "halving.json").read_text(encoding="utf-8"))
    return {(each.layer_cost, each.rule): each for each in (Outcome(**one) for one in record["outcomes"])}


def test_the_table_of_the_docs_is_that_of_the_results(found):
    text = DOC.read_text(encoding="utf-8")
    assert with_table(text, found.values()) == text
    assert text.index(BEGIN) < text.index(END)


def test_halving_takes_about_half_the_batches_and_loses_hardly_more_than_training_all(found):
    for layer_cost in halving.LAYER_COSTS:
        ours, everybody = found[layer_cost, RULE], found[layer_cost, "all"]
        assert ours.batches < 0.6
        assert everybody.batches == 1
        assert everybody.dropped == 0
        assert ours.lost <= everybody.lost + 0.005


def test_rivals_alone_drop_the_best_more_often(found):
    for layer_cost in halving.LAYER_COSTS:
        assert found[layer_cost, RULE].dropped < found[layer_cost, "rivals"].dropped


def test_a_short_simulation_finds_the_same(monkeypatch, found):
    monkeypatch.setattr(halving, "LAYER_COSTS", (0.03,))
    series = read_series(RESULTS / "step_times.json")
    short = {each.rule: each for each in halving_outcomes(series, 4, seed=1)}
    assert short["all"].dropped == 0
    assert abs(short[RULE].batches - found[0.03, RULE].batches) < 0.1
    assert short[RULE].lost < 0.1
