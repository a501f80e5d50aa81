"""The first sentence of a report: what the interval decides, and which of several drafts is the fastest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.acceptance.estimates import Estimate
from eval.pages import verdict
from eval.pages.verdict import decision
from eval.report_opening import next_step, sentence

IS_UNBELIEVABLE = verdict.is_unbelievable


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


def verdict_of(page):
    [words] = page.words["verdict"]
    return words.replace("\N{NO-BREAK SPACE}", " ")


def how(page):
    return [line.strip() for line in page.words["how"][0].splitlines() if line.strip()]


def test_of_one_draft_it_is_its_own(rewrite, page_of):
    record = rewrite("deep", live(1.5, 1.4, 1.6))
    processor = record["provenance"]["hardware"]["processor"]
    page = page_of("deep")
    assert verdict_of(page) == "▲ Faster: the draft decodes at 1.50x [1.40, 1.60] the speed of the target alone."
    assert how(page)[0] == (
        "Measured on 4 prompts, reading them included, at batch 1, temperature 0, lookahead 2, on a CPU "
        f"({processor}, 1 thread)."
    )


@pytest.mark.parametrize(
    ("speed", "words", "undecided"),
    [
        ((0.8, 0.75, 0.85), "▼ Slower: the draft decodes at 0.80x [0.75, 0.85]", []),
        (
            (1.1, 0.9, 1.2),
            "◆ Not decided: the draft decodes at 1.10x [0.90, 1.20]",
            ["Whether the draft is faster is not decided: the interval holds 1."],
        ),
        (
            (1.1, 1.05, 1.2),
            "▲ Faster: the draft decodes at 1.10x [1.05, 1.20]",
            ["By how much is not decided: the interval is wider than the effect."],
        ),
    ],
)
def test_a_doubt_stands_below_the_sentence(rewrite, page_of, speed, words, undecided):
    rewrite("deep", live(*speed))
    page = page_of("deep")
    assert verdict_of(page).startswith(words)
    assert [line for line in how(page)[1:] if "Warning" not in line] == undecided


def test_steps_that_are_not_to_be_believed_decide_nothing(rewrite, page_of, monkeypatch):
    def slow_with_two(record):
        live(1.5, 1.4, 1.6)(record)
        taken = [{"threads": 1, "ms": 1.5}, {"threads": 2, "ms": 105.0}]
        record["latency"]["evidence"] |= {"threads": 2, "by_threads": taken}

    rewrite("deep", slow_with_two)
    for module in (verdict, sentence, next_step):
        monkeypatch.setattr(module, "is_unbelievable", IS_UNBELIEVABLE)
    page = page_of("deep")
    assert "Not decided: the draft decodes at 1.50x" in verdict_of(page)
    assert any("step times are not to be believed (see the warnings)" in line for line in how(page))
    assert "Measure again on a quiet machine" in page.words["next"][0]


def test_of_several_it_is_the_fastest_one_s(rewrite, page_of):
    rewrite("deep", live(0.7, 0.65, 0.75))
    rewrite("shallow", live(1.5, 1.4, 1.6))
    for names in (("deep", "shallow"), ("shallow", "deep")):
        page = page_of(*names)
        assert verdict_of(page) == (
            "▲ 1 of 2 drafts is faster: shallow, the fastest, decodes at 1.50x [1.40, 1.60] the speed of the target "
            "alone."
        )
        assert not any("the fastest is not decided" in line for line in how(page))


@pytest.mark.parametrize(
    ("deep", "shallow", "head"),
    [
        ((1.3, 1.2, 1.35), (1.5, 1.4, 1.6), "▲ All 2 drafts are faster: shallow, the fastest, "),
        ((0.7, 0.6, 0.75), (0.8, 0.78, 0.9), "▼ All 2 drafts are slower: shallow, the fastest, "),
        ((0.7, 0.6, 0.75), (0.99, 0.9, 1.1), "◆ None of 2 drafts is shown to be faster: shallow, the fastest, "),
        ((0.9, 0.8, 1.05), (0.99, 0.9, 1.1), "◆ None of 2 drafts is shown to be faster: shallow, perhaps the "),
    ],
)
def test_drafts_are_counted_by_what_is_decided_of_them(rewrite, page_of, deep, shallow, head):
    rewrite("deep", live(*deep))
    rewrite("shallow", live(*shallow))
    assert verdict_of(page_of("deep", "shallow")).startswith(head)


def test_the_fastest_is_not_decided_where_intervals_overlap(rewrite, page_of):
    rewrite("shallow", live(1.5, 1.4, 1.6))
    for high, perhaps in ((1.39, False), (1.4, True)):
        rewrite("deep", live(1.3, 1.2, high))
        page = page_of("deep", "shallow")
        told = "That shallow is the fastest is not decided: its interval overlaps that of deep."
        assert (told in how(page)) == ("perhaps the fastest" in verdict_of(page)) == perhaps


def test_without_an_interval_the_fastest_is_not_decided(rewrite, page_of):
    rewrite("shallow", live(9.0, 8.9, 9.1))
    rewrite("deep", lambda record: record["live"].update(speedup={"value": 1.4, "interval": None}))
    page = page_of("deep", "shallow")
    assert "That shallow is the fastest is not decided: its interval overlaps that of deep." in how(page)


def test_without_an_interval_it_says_how_many_prompts_give_one(rewrite, page_of):
    rewrite("deep", lambda record: record["live"].update(speedup={"value": 1.4, "interval": None}, prompts=2))
    page = page_of("deep")
    assert verdict_of(page) == "◆ Not decided: the draft decodes at 1.40x the speed of the target alone."
    assert how(page)[1].startswith("Whether the draft is faster is not decided: 2 prompts give no interval: 3 are ")


def test_where_one_draft_alone_was_measured_the_other_is_named(rewrite, page_of):
    rewrite("deep", lambda record: record.update(live=None))
    rewrite("shallow", live(1.5, 1.4, 1.6))
    page = page_of("deep", "shallow")
    assert verdict_of(page).startswith("▲ Faster: shallow decodes at 1.50x")
    assert "Not measured: deep." in how(page)
    [picture] = [words["aria-label"] for words in page.all("svg") if words["aria-label"].startswith("Speed over the")]
    assert "; deep ○ predicted " in picture


def test_different_machines_decide_nothing_between_drafts(rewrite, page_of):
    def move(record):
        live(0.7, 0.65, 0.75)(record)
        record["provenance"]["hardware"]["processor"] = "Abacus 9"

    rewrite("deep", move)
    rewrite("shallow", live(1.5, 1.4, 1.6))
    page = page_of("deep", "shallow")
    assert "shallow, perhaps the fastest," in verdict_of(page)
    assert "That shallow is the fastest is not decided: the scorecards differ in their machine." in how(page)
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
    assert f"That shallow is the fastest is not decided: the scorecards differ in their {what}." in how(page)
    assert any(f"The scorecards differ in their {what} (deep " in words for words in page.words["warning"])


def test_without_live_decoding_nothing_is_measured(rewrite, page_of):
    for name in ("deep", "shallow"):
        rewrite(name, lambda record: record.update(live=None))
    page = page_of("deep", "shallow")
    assert verdict_of(page).startswith("○ None of 2 drafts was measured: ")
    assert " is predicted to decode at " in verdict_of(page)
    assert how(page)[0] == "Decoding is measured at temperature 0 alone, which was not scored."


def test_a_warning_stands_below_it_once_with_the_names_of_its_runs(rewrite, page_of):
    rewrite("deep", lambda record: record.update(warnings=["Mind the gap."]))
    assert page_of("deep").words["warning"] == ["Warning: Mind the gap."]
    assert "Warning: deep: Mind the gap." in page_of("deep", "shallow").words["warning"]
    rewrite("shallow", lambda record: record.update(warnings=["Mind the gap."]))
    told = page_of("deep", "shallow").words["warning"]
    assert [words for words in told if "gap" in words] == ["Warning: deep, shallow: Mind the gap."]


def test_what_the_page_is_about_is_said(page_of):
    assert page_of("deep").words["about"][0].endswith(", draft deep")
    assert page_of("deep", "shallow").words["about"][0].endswith(", 2 drafts")
