"""One file that any browser shows as it is: nothing fetched, nothing run, nothing told by colour alone."""

import json
import re
import shutil

import pytest
from PIL import Image

from eval.pages.drawing import COLOURS, HATCHES, series_style
from eval.report.page import write_report
from eval.report.round_time import PARTS
from eval.report.texts import MARKS
from eval.rounds.race import Writer

FETCHING = ("src", "srcset", "data", "action", "poster", "background", "formaction", "xlink:href")
SECTIONS = ["drafts", "positions", "lookahead", "round", "latency", "groups", "training", "texts", "origin"]
FIGURES = ["speeds", "positions-t0", "positions-t1", "tau-t0", "speed-t0", "tau-t1", "speed-t1", "round", "depth"]


@pytest.fixture(scope="module", params=[("deep",), ("deep", "shallow")], ids=["one", "two"])
def page(request, scored, read_back, tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "report.html"
    write_report([scored / name for name in request.param], out)
    return read_back(out)


def test_the_verdict_comes_first_and_once(page):
    assert len(page.words["verdict"]) == 1
    body = [tag for tag, _ in page.elements][[tag for tag, _ in page.elements].index("body") :]
    assert body[:5] == ["body", "header", "p", "h1", "span"]
    assert page.all("h1")[0]["class"].split()[0] == "verdict"


def test_sentence_picture_and_next_step_stand_above_everything_else(page):
    first = page.text.index('<h1 class="verdict'), page.text.index("<svg"), page.text.index('<p class="next"')
    assert list(first) == sorted(first)
    assert first[-1] < page.text.index('<div class="how">') < page.text.index("<nav") < page.text.index("<table")


def test_sections_stand_in_their_order_and_are_linked(page):
    assert [attributes["id"] for attributes in page.all("section")] == SECTIONS
    assert [attributes["href"] for attributes in page.all("a")] == [f"#{name}" for name in SECTIONS]


def test_every_figure_says_what_it_shows(page):
    pictures = page.all("svg")
    drafts_of_two_depths = len(page.words["about"][0].split("2 drafts")) - 1
    due = len(FIGURES) - 1 + drafts_of_two_depths
    assert len(pictures) == len(page.all("figure")) == len(page.all("figcaption")) == due
    for attributes in pictures:
        assert attributes["role"] == "img"
        assert re.search(r"\d", attributes["aria-label"]), "the words hold the numbers"
        assert len(attributes["viewbox"].split()) == 4


def test_nothing_is_fetched_and_nothing_runs(page):
    for tag, attributes in page.elements:
        assert tag not in ("script", "link", "img", "iframe", "object", "embed", "base", "image")
        for name, value in attributes.items():
            assert name not in FETCHING, (tag, name)
            assert not name.startswith("on"), (tag, name)
            assert name != "href" or value.startswith("#")
            for target in re.findall(r"url\(([^)]*)", value or ""):
                assert target.startswith("#"), (tag, value)
    [style] = re.findall(r"<style>(.*?)</style>", page.text, re.DOTALL)
    assert "url(" not in style
    assert "@import" not in style
    assert "http" not in page.text


def test_names_within_the_page_are_unique_and_lead_somewhere(page):
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    used = [attributes["href"][1:] for _, attributes in page.elements if "href" in attributes]
    used += re.findall(r"url\(#([^)]*)\)", page.text)
    assert set(used) <= set(ids)


def test_a_prompt_is_text_whatever_it_holds(page):
    assert "<script" not in page.text
    assert "<script>alert('why')</script>" in page.words["prompt"]


def test_the_page_suits_a_phone_print_and_the_dark(page):
    names = {attributes.get("name"): attributes.get("content") for attributes in page.all("meta")}
    assert names["viewport"] == "width=device-width, initial-scale=1"
    assert names["color-scheme"] == "light dark"
    assert "@media print" in page.text
    assert "prefers-color-scheme: dark" in page.text
    regions = [attributes for attributes in page.all("div") if attributes.get("class") == "scroll"]
    assert len(regions) == len(page.all("table"))
    assert all(region["tabindex"] == "0" and region["aria-label"] for region in regions)


def test_colours_of_plots_are_the_page_s(page):
    assert all(colour not in page.text.partition("</style>")[2] for colour in COLOURS)
    assert "var(--series-1)" in page.text
    for name in set(re.findall(r"var\((--[\w-]+)\)", page.text)):
        assert f"{name}:" in page.text, f"{name} is not defined"


def test_series_differ_in_more_than_their_colour():
    styles = [series_style(place) for place in range(210)]
    assert len({str(sorted(style.items(), key=str)) for style in styles}) == 210
    without_colour = {(style["marker"], str(style["linestyle"])) for style in styles[:35]}
    assert len(without_colour) == 35
    assert len(set(HATCHES)) == len(HATCHES) == len(PARTS)


def test_every_writer_has_a_mark_of_its_own():
    assert len(set(MARKS.values())) == len(MARKS)
    assert set(MARKS) == set(Writer.__args__)


def test_texts_show_marks_beside_colours(page, scored):
    examples = json.loads((scored / "deep" / "eval" / "examples.json").read_text())["examples"]
    for example in examples:
        for text, writer in example["pieces"]:
            assert writer in MARKS
            assert text in "".join(page.words[writer])
    for writer, (before, after) in MARKS.items():
        assert all(words.startswith(before) and words.endswith(after) for words in page.words[writer])
        assert f".{writer} {{" in page.text, "a colour or a line too"


def test_plots_lie_beside_the_page_as_pictures(runs, tmp_path):
    page, *plots = write_report([runs / "deep", runs / "shallow"], tmp_path / "x" / "my page.html")
    assert page == tmp_path / "x" / "my page.html"
    assert [path.name for path in plots] == [f"my page-{name}.png" for name in FIGURES]
    assert sorted(path.name for path in page.parent.iterdir()) == sorted([page.name, *(path.name for path in plots)])
    for path in plots:
        with Image.open(path) as picture:
            assert picture.width in (940, 1000)
            assert picture.getpixel((0, 0)) == (255, 255, 255, 255)


def test_one_scorecard_makes_one_page(runs, tmp_path):
    first, second = (write_report([runs / "deep"], tmp_path / name / "report.html") for name in "ab")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_names_with_markup_and_dollars_are_shown_as_they_are(runs, read_back, tmp_path):
    odd = "a<b>$x$&_"
    shutil.move(runs / "shallow", runs / odd)
    write_report([runs / "deep", runs / odd], tmp_path / "report.html")
    page = read_back(tmp_path / "report.html")
    assert "<b>" not in page.text
    assert any(row["draft"] == odd for row in page.cells("Acceptance and predicted speed"))
    assert any(odd in words for words in page.shown)


def test_the_plots_letters_are_letters(page):
    assert "tokens per round (τ)" in page.shown
    assert "share of rounds that keep it" in page.shown
