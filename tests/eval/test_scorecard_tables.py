"""Tables and warnings of scorecards."""

import pytest

from eval.scorecard_schema import RuleRow
from eval.scorecard_tables import (
    find_warnings,
    results,
    scored_drafts,
)
from tests.eval.records import acceptance, latency, live, scorecard, speedup
from tests.eval.records import changed as with_values

STEP_MS = 20.0


@pytest.fixture
def card():
    """A sound scorecard: plain decoding is as fast as its timed step."""
    rows = [acceptance("draft", temperature, {3: (2,) * 6}, (4,) * 6) for temperature in (0.0, 1.0)]
    shared = {name: getattr(rows[1], name) for name in RuleRow.model_fields if name != "rule"}
    rows[1] = with_values(rows[1], other_rules=tuple(RuleRow(rule=rule, **shared) for rule in ("second", "third")))
    speedups = [speedup("draft", row.temperature, 1.5, 3, (3,)) for row in rows]
    steps = latency(STEP_MS, {3: 22.0}, {"draft": (4.0, 5.0)})
    return scorecard(rows, steps, speedups, live=with_values(live(), plain__ms_per_token=STEP_MS))


def test_every_acceptance_method_has_its_row(card):
    table = results(scored_drafts({"run": card}))
    expected = [method.rule for row in card.acceptance for method in (row, *row.other_rules)]
    assert len(expected) == 4
    assert sorted(row[2] for row in table.rows) == sorted(expected)
    assert len(results(scored_drafts({"run": card}), all_methods=False).rows) == len(card.acceptance)


def test_a_sound_scorecard_warns_of_nothing(card):
    assert find_warnings(card) == []


def test_disagreement_of_decoding_and_replay_is_a_fault_in_float32_and_rounding_otherwise(card):
    wrong = with_values(card, lives__0__agreement__exact=False)
    [warning] = find_warnings(wrong)
    assert "report it" in warning
    [warning] = find_warnings(with_values(wrong, settings__dtype="bfloat16"))
    assert "bfloat16" in warning


@pytest.mark.parametrize(
    "change",
    [{"latency__settled": False}, {"lives__0__plain__ms_per_token": 3 * STEP_MS + 2}, {"prompts__scored": 1}],
)
def test_unsettled_steps_disturbed_decoding_and_few_prompts_are_warned_of(card, change):
    assert len(find_warnings(with_values(card, **change))) == 1
