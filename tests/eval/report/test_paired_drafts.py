"""Two scorecards of the same prompts and answers are compared prompt by prompt, and others are not."""

import shutil

import pytest

from eval.acceptance.estimates import Estimate
from eval.pages.verdict import with_interval
from eval.report.difference_blocks import Differences, paired_difference
from eval.report_inputs.cards import read_card
from tests.eval.report.edits import two_lookaheads_alone

CAPTION = "Paired differences on the same prompts and answers"
GAINS = "What distilling gained, on the same prompts and answers"


def row_of(card, draft, temperature):
    return card.record.row(draft, temperature)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("lookahead", [1, 3])
def test_sums_by_prompt_give_the_difference_that_the_answers_gave(scored, place, lookahead):
    card = read_card(scored / "deep" / "eval" / "scorecard.json")
    told = card.record.differences[place]
    pair = (row_of(card, name, told.temperature).by_prompt for name in ("draft", "undistilled"))
    found = paired_difference(*pair, lookahead=lookahead, resampling=card.resampling)
    for ours, theirs in (
        (found.alpha, told.alpha),
        (found.tau, told.at(lookahead)),
        (found.greedy_match, told.greedy_match),
    ):
        assert ours.value == pytest.approx(theirs.value)
        assert ours.interval == pytest.approx(theirs.interval)
    assert found.sign_flip_p == told.greedy_match.sign_flip_p


def test_a_draft_differs_from_itself_by_nothing(scored):
    card = read_card(scored / "deep" / "eval" / "scorecard.json")
    sums = row_of(card, "draft", 1.0).by_prompt
    found = paired_difference(sums, sums, lookahead=2, resampling=card.resampling)
    assert found == Differences(*[Estimate(0, (0, 0))] * 3, sign_flip_p=1)


def test_a_second_run_is_paired_with_the_first(scored, page_of):
    """The second run's draft is the first one's baseline, so the scorecard of the first knows the answer."""
    own = read_card(scored / "deep" / "eval" / "scorecard.json").record.differences
    rows = page_of("shallow", "deep").cells(CAPTION)
    found = [row for row in rows if row["difference"] == "deep − shallow"]
    assert [row["difference"] for row in rows] == ["deep − shallow"] * 2
    for row, told in zip(found, own, strict=True):
        assert row["α"] == with_interval(told.alpha)
        assert row["argmax agreement"] == with_interval(told.greedy_match)
        assert row["τ"] == with_interval(told.at(int(row["at lookahead"])))


def test_the_first_named_is_what_others_are_compared_with(page_of):
    rows = page_of("deep", "shallow").cells(CAPTION)
    assert rows[-1]["difference"] == "shallow − deep"
    assert rows[-1]["α"].startswith("-")


def test_a_baseline_that_another_run_is_about_is_listed_once(page_of):
    rows = page_of("shallow", "deep").cells("Acceptance and predicted speed")
    assert [row["draft"] for row in rows] == ["shallow", "deep"] * 2
    rows = page_of("deep", "shallow").cells("Acceptance and predicted speed")
    assert [row["draft"] for row in rows] == ["deep", "shallow"] * 2
    twins = page_of("deep", "shallow").cells("Acceptance and predicted speed, undistilled")
    assert [row["draft"] for row in twins] == ["deep: undistilled"] * 2


def other_prompts(record):
    record["prompts"]["ids_sha256"] = "0" * 64


def other_answers(record):
    for answers in record["prompts"]["answers"]:
        answers["ids_sha256"] = "0" * 64


def no_sums(record):
    for row in record["acceptance"]:
        row["by_prompt"] = None


def other_lookaheads(record):
    for row in record["acceptance"]:
        for entry in (
            *row["lookahead"],
            *(e for part in row["bins"] for one in part["bins"] for e in one["lookahead"]),
        ):
            entry["lookahead"] += 10
        for entry in row["by_prompt"]["rounds"]:
            entry["lookahead"] += 10
    for row in record["speedup"]:
        row["best_lookahead"] += 10
        for entry in row["lookahead"]:
            entry["lookahead"] += 10
    for entry in (*record["latency"]["verify"], record["live"], *record["live_at"]):
        entry["lookahead"] += 10


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (other_prompts, "the prompts were others"),
        (other_answers, "the target's answers were others"),
        (no_sums, "does not hold the sums of every prompt"),
        (other_lookaheads, "no lookahead was scored for both"),
    ],
)
def test_why_two_runs_are_not_paired(rewrite, page_of, edit, told):
    rewrite("shallow", edit)
    page = page_of("deep", "shallow")
    assert CAPTION not in page.tables
    assert {row["difference"] for row in page.cells(GAINS)} == {"deep − deep: undistilled"}
    shown = "".join(page.shown)
    for temperature in "01":
        assert f"Paired difference shallow − deep at temperature {temperature}: " in shown
    assert shown.count(told) == (2 if edit is not no_sums else 3)  # tasks need the sums too


def test_a_temperature_that_one_run_lacks_is_named(rewrite, page_of):
    def drop(record):
        for rows in (record["acceptance"], record["speedup"], record["differences"], record["prompts"]["answers"]):
            rows[:] = [row for row in rows if row["temperature"] == 0]
        record["live_at"] = []

    rewrite("deep", drop)
    page = page_of("deep", "shallow")
    assert "shallow − deep at temperature 1: " in "".join(page.shown)
    assert [row["temperature"] for row in page.cells(CAPTION)] == ["0"]


def test_tau_is_compared_at_a_lookahead_that_both_have(rewrite, page_of):
    rewrite("deep", two_lookaheads_alone)
    rewrite("shallow", lambda record: [row.update(best_lookahead=3) for row in record["speedup"]])
    rows = page_of("deep", "shallow").cells(CAPTION)
    assert [row["at lookahead"] for row in rows[-2:]] == ["2", "2"]


def test_other_prompts_are_warned_of(rewrite, page_of):
    rewrite("shallow", other_prompts)
    told = [words for words in page_of("deep", "shallow").words["warning"] if "in their prompts" in words]
    assert [words.split(": ")[2] for words in told] == ["acceptance and speed may differ for that alone."]
    assert not any("in their prompts" in words for words in page_of("deep").words.get("warning", []))


def test_runs_of_one_name_are_told_apart(runs, page_of):
    shutil.copytree(runs / "shallow", runs / "again" / "deep")
    names = {row["draft"] for row in page_of("deep", "again/deep").cells("Acceptance and predicted speed")}
    assert {str(runs / "deep" / "eval"), str(runs / "again" / "deep" / "eval")} <= names
