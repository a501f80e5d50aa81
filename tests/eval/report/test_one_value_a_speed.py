"""On a page one speed has one value, wherever it stands; what else is measured of it is named for what it is."""

import re

import pytest
from matplotlib.figure import Figure as Canvas

from architectures.pages.blocks import MARKS
from eval.report.lookaheads import speed_figure
from eval.report_inputs.cards import read_cards
from eval.report_inputs.drafts import primaries, scored_drafts
from eval.report_opening.picture import speeds_figure

WHOLE, DECODING = "1.37x [1.31, 1.43]", "1.52x [1.45, 1.59]"


@pytest.fixture
def page(rewrite, page_of):
    def change(record):
        record["live"].update(
            speedup={"value": 1.37, "interval": [1.31, 1.43]},
            decoding_speedup={"value": 1.52, "interval": [1.45, 1.59]},
        )

    rewrite("deep", change)
    rewrite("shallow", lambda record: record["live"].update(speedup={"value": 0.8, "interval": [0.7, 0.9]}))
    return page_of("deep", "shallow")


def said(page):
    """All words of the page, those of pictures too."""
    told = " ".join(page.shown) + " ".join(words["aria-label"] for words in page.all("svg"))
    return told.replace("\N{NO-BREAK SPACE}", " ")


def test_the_speed_is_the_same_in_headline_pictures_and_tables(page):
    assert said(page).count(WHOLE) == 5, "headline, picture, table of speeds, plot and table by lookahead"
    others = set(re.findall(r"1\.37x \[[^]]*\]|[\d.]+x \[1\.31, [^]]*\]", said(page)))
    assert others == {WHOLE}


def test_what_leaves_something_out_stands_once_and_is_named(page):
    assert said(page).count(DECODING) == 1
    [row] = [row for row in page.cells("Measured speed") if row["draft"] == "deep" and row["way"].startswith("draft")]
    assert row["without reading the prompts"] == DECODING
    assert row["speed"] == WHOLE


def test_predictions_have_one_value_too(page, runs):
    by_lookahead = page.cells("By lookahead, temperature 0")
    for row in page.cells("Acceptance and predicted speed"):
        if row["temperature"] == "0":
            [same] = [
                each
                for each in by_lookahead
                if (each["draft"], each["lookahead"]) == (row["draft"], row["at lookahead"])
            ]
            assert row["predicted speed"].split()[0] == same["predicted"]


def test_the_draft_with_its_policy_is_the_one_speed_of_a_run_that_has_one(rewrite, page_of):
    def change(record):
        for row in record["live"]["ways"]:
            if row["way"] == "draft with its policy":
                row["speedup"] = {"value": 1.37, "interval": [1.31, 1.43]}

    rewrite("small", change)
    for names in (("small",), ("small", "shallow")):
        page = page_of(*names)
        assert said(page).count(WHOLE) == 3, "headline, picture, table of speeds"
        assert f"the draft alone {MARKS['faster']}" not in page.words["verdict"][0]


def test_a_verdict_has_a_mark_words_and_a_colour_of_its_own(page):
    told = {row["draft"]: row["verdict"] for row in page.cells("Measured speed") if row["way"].startswith("draft")}
    assert told == {"deep": "▲ faster", "shallow": "▼ slower"}
    assert "▲ faster" in page.words["faster"]
    assert "▼ slower" in page.words["slower"]
    for judgement in ("faster", "slower", "not-decided"):
        assert f"td.{judgement}" in page.text
    assert len(set(MARKS.values())) == len(MARKS)


def test_what_a_draft_was_before_it_was_distilled_is_folded_away(page):
    before = re.sub(r"<details>.*?</details>", "", page.text, flags=re.DOTALL)
    tables = re.findall(r"<table.*?</table>", before, flags=re.DOTALL)
    origin = [table for table in tables if 'aria-label="Models"' in table]
    assert len(origin) == 1, "where numbers come from names every model"
    assert "undistilled" not in "".join(table for table in tables if table not in origin)
    assert "undistilled" in page.text.partition("<details>")[2]


def test_scorecards_without_lookup_have_a_page(rewrite, page_of):
    for name in ("deep", "shallow"):
        rewrite(name, lambda record: record["live"].update(ways=[], over_lookup=[]))
    page = page_of("deep", "shallow")
    assert {row["over n-gram lookup"] for row in page.cells("Measured speed")} == {"–"}
    assert "n-gram lookup" not in next(w["aria-label"] for w in page.all("svg"))


def test_points_in_plots_are_the_values_in_their_words(page, runs):
    drafts = scored_drafts(read_cards([runs / "deep", runs / "shallow"]))
    drawn = {}
    for figure in (speeds_figure(drafts), speed_figure(primaries(drafts), 0.0)):
        axes = Canvas().add_subplot()
        figure.draw(axes)
        drawn[figure.name] = [line.get_ydata()[0] for line in axes.get_lines() if "measured" in str(line.get_label())]
        drawn[figure.name] += [line.get_xdata()[0] for line in axes.get_lines() if len(line.get_xdata()) == 1]
    assert drawn["speeds"] == pytest.approx([1.37, 0.8])
    assert drawn["speed-t0"][:2] == pytest.approx([1.37, 0.8])
