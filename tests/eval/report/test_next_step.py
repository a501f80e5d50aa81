"""The line of a report that says what to do: one for every situation a reader may be in."""

import pytest

POLICY, LOOKUP = "draft with its policy", "n-gram lookup"


def speed(value, low, high):
    return {"value": value, "interval": [low, high]}


@pytest.fixture
def situation(rewrite, page_of):
    """The line of a page about one run; without a policy, with lookup no faster, settled, unless told otherwise."""

    def read(*, measured, lookup=(1.0, 0.9, 1.1), over=None, alpha=0.5, needed=0.6, edit=lambda _: None):
        def change(record):
            live = record["live"]
            live["speedup"] = measured if isinstance(measured, dict) else speed(*measured)
            live["lookahead"], live["prompts"] = 2, 4
            [way] = [row for row in live["ways"] if row["way"] == LOOKUP]
            way["speedup"] = speed(*lookup)
            live["over_lookup"] = [] if over is None else [{"way": "draft", "speedup": speed(*over)}]
            record["latency"]["settled"] = True
            live["plain"]["ms_per_token"] = record["latency"]["target"]["p50_ms"]["value"]
            for row in record["acceptance"]:
                row["alpha"]["value"] = alpha
                row["alpha"]["interval"] = [alpha, alpha]
            for row in record["speedup"]:
                row["break_even_alpha"] = needed
            edit(record)

        rewrite("deep", change)
        [words] = page_of("deep").words["next"]
        return words.replace("\N{NO-BREAK SPACE}", " ").removeprefix("Next: ")

    return read


def test_a_faster_draft_is_used_at_its_lookahead(situation):
    assert situation(measured=(1.5, 1.4, 1.6)) == "Use the draft at lookahead 2."


@pytest.mark.parametrize(
    ("over", "told"),
    [
        ((1.2, 1.1, 1.3), "Use the draft at lookahead 2: it is 1.20x [1.10, 1.30] as fast as n-gram lookup, which "),
        ((0.8, 0.7, 0.9), "Use n-gram lookup, which needs no draft: the draft is 0.80x [0.70, 0.90] as fast as it."),
        ((1.0, 0.9, 1.1), "Use the draft at lookahead 2, or n-gram lookup, which needs no draft: which of them is "),
    ],
)
def test_a_faster_draft_is_held_against_lookup(situation, over, told):
    assert situation(measured=(1.5, 1.4, 1.6), over=over).startswith(told)


def test_a_draft_below_its_break_even_is_trained_longer(situation):
    told = situation(measured=(0.8, 0.7, 0.9), alpha=0.3, needed=0.42)
    assert told == (
        "Train the draft longer or on more answers: it pays from an acceptance (alpha) of 0.42 on, and has 0.30."
    )


def test_lookup_is_used_for_now_where_it_alone_pays(situation):
    told = situation(measured=(0.8, 0.7, 0.9), lookup=(1.2, 1.1, 1.3))
    assert told.startswith("Use n-gram lookup for now: 1.20x [1.10, 1.30], without a draft. Train the draft ")


def test_nothing_pays_where_no_acceptance_would(situation):
    assert situation(measured=(0.8, 0.7, 0.9), needed=None).startswith("Nothing pays here: ")


def test_a_draft_that_should_pay_and_does_not_is_looked_into(situation):
    told = situation(measured=(0.8, 0.7, 0.9), alpha=0.7, needed=0.4)
    assert told.startswith("See where a round's time goes, below: by acceptance and step times the draft should ")


def test_more_prompts_are_decoded_where_some_would_decide(situation):
    told = situation(measured=(1.1, 0.95, 1.25))
    assert told == (
        "Decode more prompts: some 10 in place of 4 (eval.live_prompts) would decide it, if the speed stays what it is."
    )
    assert situation(measured=(1.01, 0.8, 1.2)).startswith("Train the draft "), "too many would be needed"


def test_without_an_interval_enough_prompts_are_decoded(situation):
    told = situation(measured={"value": 1.4, "interval": None})
    assert told == "Decode more prompts: eval.live_prompts of 3 or more give an interval."


def unsettled(record):
    record["latency"]["settled"] = False


def slow_plain(record):
    record["live"]["plain"]["ms_per_token"] = 9 + 2 * record["latency"]["target"]["p50_ms"]["value"]


@pytest.mark.parametrize("edit", [unsettled, slow_plain])
def test_what_was_disturbed_is_measured_again(situation, edit):
    assert situation(measured=(0.99, 0.9, 1.1), edit=edit).startswith("Measure again on a quiet machine: ")


def test_temperature_0_is_scored_where_nothing_was_measured(rewrite, page_of):
    rewrite("deep", lambda record: record.update(live=None))
    assert "Score at temperature 0 too (eval.temperatures)" in page_of("deep").words["next"][0]


def test_of_several_that_may_be_the_fastest_the_same_turns_tell(rewrite, page_of):
    for name, value in (("deep", 1.4), ("shallow", 1.5)):

        def change(record, value=value):
            record["live"].update(speedup=speed(value, value - 0.2, value + 0.2), over_lookup=[])

        rewrite(name, change)
    [words] = page_of("deep", "shallow").words["next"]
    assert words.startswith("Next: Use shallow at lookahead ")
    assert words.endswith("; widedraft speed with all of them in the same turns tells which is the fastest.")


def test_a_draft_with_its_policy_is_used_with_it(rewrite, page_of):
    def change(record):
        for row in record["live"]["ways"]:
            row["speedup"] = speed(1.5, 1.4, 1.6)
            if row["way"] == POLICY:
                row["lookahead"] = 3
        record["live"]["over_lookup"] = [
            {"way": "draft", "speedup": speed(0.5, 0.4, 0.6)},
            {"way": POLICY, "speedup": speed(1.2, 1.1, 1.3)},
        ]

    rewrite("small", change)
    told = page_of("small").words["next"][0]
    assert told.startswith("Next: Use the draft with its policy at lookahead 3: it is 1.20x")
