"""Tables and warnings of scorecards."""

import pytest

from architectures.console import markdown
from eval.scorecard_schema import RuleRow
from eval.scorecard_tables import decoding, find_warnings, interval, results, scorecard_page, scored_drafts, summary
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


def test_the_result_has_a_row_per_way_of_decoding(card):
    table = decoding(scored_drafts({"run": card}))
    assert [row[0] for row in table.rows] == ["target alone", *(way.way for way in card.live.ways), "draft"]
    draft = dict(zip(table.columns, table.rows[-1], strict=True))
    spent = card.live.speculative
    assert float(draft["tokens/s"]) == pytest.approx(spent.tokens / (spent.prefill_s + spent.decode_s), abs=0.05)
    assert draft["acceptance rate"] == interval(card.acceptance[0].alpha)
    assert draft["speedup"] == interval(card.live.speedup, 2, "x")


def test_the_summary_has_at_most_ten_lines(card):
    several = with_values(card, lives=(card.live,) * 3, warnings=("one", "two", "three"))
    assert len(summary(several).splitlines()) <= 10  # two more name the files


def test_the_page_begins_with_the_result_on_one_screen(card):
    first, _, rest = markdown(scorecard_page(card)).partition("## Details")
    assert len(first.splitlines()) <= 40
    assert decoding(scored_drafts({"draft": card})).title in first
    assert "## " not in rest


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
    [warning] = find_warnings(with_values(card, **change))
    assert len(warning) <= 120
