"""The first sentence of a report: what the interval decides, and which of several drafts is the fastest."""

import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.acceptance.estimates import Estimate
from eval.pages.verdict import decision


def speedup(value, low, high):
    return Estimate(value, (low, high))


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (speedup(1.42, 1.36, 1.47), "Faster"),
        (speedup(0.8, 0.75, 0.85), "Slower"),
        (speedup(1.1, 0.99, 1.2), "Not decided, because the interval holds 1"),
        (speedup(1.1, 1.0, 1.2), "Not decided, because the interval holds 1"),
        (speedup(0.9, 0.85, 1.0), "Not decided, because the interval holds 1"),
        (
            speedup(1.12, 1.05, 1.2),
            "Faster, but by how much is not decided, because the interval is wider than the effect",
        ),
        (
            speedup(0.9, 0.8, 0.95),
            "Slower, but by how much is not decided, because the interval is wider than the effect",
        ),
        (speedup(1.5, 1.25, 1.75), "Faster"),  # as wide as the effect, not wider
        (Estimate(1.4, None), "Not decided, because of rain"),
    ],
)
def test_the_interval_decides(estimate, words):
    assert decision(estimate, too_few="of rain") == words


bounds = st.floats(min_value=0.01, max_value=10)


@given(st.tuples(bounds, bounds, bounds).map(sorted))
def test_a_direction_is_claimed_only_where_the_whole_interval_lies_there(numbers):
    low, value, high = numbers
    told = decision(speedup(value, low, high), too_few="")
    assert told.startswith("Faster") == (low > 1)
    assert told.startswith("Slower") == (high < 1)
    assert ("not decided" in told.lower()) == (low <= 1 <= high or high - low > abs(value - 1))


def live(value, low, high):
    def edit(record):
        record["live"]["speedup"] = {"value": value, "interval": [low, high]}
        record["live"]["lookahead"] = 2

    return edit


def test_of_one_draft_it_is_its_own(rewrite, page_of):
    record = rewrite("deep", live(1.5, 1.4, 1.6))
    processor = record["provenance"]["hardware"]["processor"]
    [words] = page_of("deep").words["verdict"]
    assert words == (
        "Faster: 1.50x [1.40, 1.60] the speed of the target alone at batch 1, temperature 0, lookahead 2, on a CPU "
        f"({processor}, 1 thread)."
    )


def test_of_several_it_is_the_fastest_one_s(rewrite, page_of):
    rewrite("deep", live(0.7, 0.65, 0.75))
    rewrite("shallow", live(1.5, 1.4, 1.6))
    for names in (("deep", "shallow"), ("shallow", "deep")):
        [words] = page_of(*names).words["verdict"]
        assert words.startswith("Of 2 measured drafts shallow is the fastest. Faster: 1.50x [1.40, 1.60]")


def test_the_fastest_is_not_decided_where_intervals_overlap(rewrite, page_of):
    rewrite("deep", live(1.4, 1.3, 1.45))
    rewrite("shallow", live(1.5, 1.4, 1.6))
    [words] = page_of("deep", "shallow").words["verdict"]
    assert words.startswith(
        "Of 2 measured drafts shallow came out fastest, which is not decided: its interval overlaps that of deep. "
    )


def test_the_fastest_is_decided_where_intervals_do_not_meet(rewrite, page_of):
    rewrite("shallow", live(1.5, 1.4, 1.6))
    for high, told in ((1.39, "is the fastest"), (1.4, "came out fastest, which is not decided")):
        rewrite("deep", live(1.3, 1.2, high))
        assert told in page_of("deep", "shallow").words["verdict"][0]


def test_without_an_interval_the_fastest_is_not_decided(rewrite, page_of):
    rewrite("shallow", live(9.0, 8.9, 9.1))
    rewrite("deep", lambda record: record["live"].update(speedup={"value": 1.4, "interval": None}))
    assert "which is not decided: its interval overlaps" in page_of("deep", "shallow").words["verdict"][0]


def test_without_an_interval_it_says_how_many_prompts_give_one(rewrite, page_of):
    rewrite("deep", lambda record: record["live"].update(speedup={"value": 1.4, "interval": None}, prompts=2))
    [words] = page_of("deep").words["verdict"]
    assert words.startswith("Not decided, because 2 prompts give no interval: 3 are the least: 1.40x the speed of")


def test_where_one_draft_alone_was_measured_it_is_not_the_fastest(rewrite, page_of):
    rewrite("deep", lambda record: record.update(live=None))
    rewrite("shallow", live(1.5, 1.4, 1.6))
    [words] = page_of("deep", "shallow").words["verdict"]
    assert words.startswith("Of 2 drafts only shallow was measured. Faster: 1.50x")


def test_different_machines_decide_nothing_between_drafts(rewrite, page_of):
    def move(record):
        live(0.7, 0.65, 0.75)(record)
        record["provenance"]["hardware"]["processor"] = "Abacus 9"

    rewrite("deep", move)
    rewrite("shallow", live(1.5, 1.4, 1.6))
    page = page_of("deep", "shallow")
    assert (
        "shallow came out fastest, which decides nothing between them: they differ in their machine. Faster:"
        in page.words["verdict"][0]
    )
    shown = "".join(page.shown)
    assert "differ in their machine (deep CPU (Abacus 9, 1 thread), shallow CPU (" in shown
    assert "the drafts were timed on different machines" in shown


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (lambda record: record["settings"].update(dtype="bfloat16"), "number type"),
        (lambda record: record["prompts"].update(ids_sha256="0" * 64), "prompts"),
    ],
)
def test_different_number_types_or_prompts_decide_nothing_either(rewrite, page_of, edit, what):
    rewrite("shallow", live(1.5, 1.4, 1.6))
    rewrite("deep", lambda record: (live(0.7, 0.65, 0.75)(record), edit(record)))
    page = page_of("deep", "shallow")
    assert f"which decides nothing between them: they differ in their {what}. Faster:" in page.words["verdict"][0]
    assert any(f"The scorecards differ in their {what} (deep " in words for words in page.words["warning"])


def test_without_live_decoding_nothing_is_measured(rewrite, page_of):
    for name in ("deep", "shallow"):
        rewrite(name, lambda record: record.update(live=None))
    [words] = page_of("deep", "shallow").words["verdict"]
    assert words == "Not measured for any of 2 drafts: temperature 0, at which texts are decoded, was not scored."


def test_warnings_stand_below_it_with_the_run_s_name(rewrite, page_of):
    rewrite("deep", lambda record: record.update(warnings=["Mind the gap."]))
    assert " Mind the gap." in page_of("deep").words["warning"]
    assert " deep: Mind the gap." in page_of("deep", "shallow").words["warning"]


def test_the_title_asks_for_all_drafts(runs, page_of):
    shutil.copytree(runs / "shallow", runs / "shallower")
    for names, asked in (
        (("deep",), "deep?"),
        (("deep", "shallow"), "deep or shallow?"),
        (("deep", "shallow", "shallower"), "deep, shallow or shallower?"),
    ):
        title = page_of(*names).text
        assert f"<h1>Is it faster with {asked}</h1>" in title
