"""The sentence a reader believes: it must follow from the interval, whatever the value."""

from dataclasses import replace

import pytest

from eval.acceptance.estimates import Estimate
from eval.pages.headline import headline
from eval.pages.verdict import alpha_words, find_warnings, verdict, with_interval
from eval.records.differences import DifferenceRow, MatchDifference, PromptSigns, TauDifference, TokenTable
from eval.records.scorecard_speeds import OverLookup, Spent, WayRow
from tests.eval import records

LOOKAHEADS = (1, 2, 3, 4)


def scorecard(
    value=1.12, interval=(1.05, 1.2), *, exact=True, settled=True, changed=0, scored=6, target_ms=20.0, **setting
):
    row = records.acceptance("draft", 0.0, {3: [5] * 6}, [10] * 6, changed=changed)
    return records.scorecard(
        [row],
        replace(records.latency(target_ms, {3: 25.0}, {"draft": (2.0, 3.0)}), settled=settled),
        [records.speedup("draft", 0.0, 1.5, 3, [3])],
        live=records.live(value=value, interval=interval, exact=exact),
        scored=scored,
        settings=records.settings(**setting),
    )


@pytest.mark.parametrize(
    ("value", "interval", "start"),
    [
        (
            1.12,
            (1.05, 1.2),
            "Faster: 1.12x [1.05, 1.20] the speed of the target alone at batch 1, temperature 0, lookahead 3",
        ),
        (0.85, (0.8, 0.9), "Slower: 0.85x [0.80, 0.90] the speed of the target alone at batch 1"),
        (1.12, (0.99, 1.3), "Not decided: 1.12x [0.99, 1.30] the speed of the target alone"),
        (1.05, (1.0, 1.1), "Not decided: 1.05x [1.00, 1.10] the speed of the target alone"),
        (0.95, (0.9, 1.0), "Not decided: 0.95x [0.90, 1.00] the speed of the target alone"),
        (1.12, None, "Not decided: 1.12x the speed of the target alone"),
    ],
)
def test_the_verdict_follows_from_the_interval(value, interval, start):
    assert verdict(scorecard(value, interval)).startswith(start)


def test_without_an_interval_the_verdict_says_how_many_prompts_give_one():
    assert verdict(scorecard(1.12, None)).endswith("4 prompts give no interval: 6 are the least.")


def test_the_verdict_names_the_machine():
    assert "on this CPU (Abacus 9, 2 threads)" in verdict(scorecard())
    assert "on this CPU (Abacus 9, 1 thread)" in verdict(scorecard(threads=1))
    assert "on this GPU (Beads 2)" in verdict(scorecard(device="cuda:0"))


def test_nothing_to_warn_of():
    assert find_warnings(scorecard()) == []


def test_a_disagreement_is_an_alarm_in_float32_and_expected_in_half_precision():
    [alarm] = find_warnings(scorecard(exact=False))
    assert alarm.startswith("LOOP AND REPLAY DISAGREE IN FLOAT32")
    for fact in ("Of 4 prompts, 3 have", "2 the recorded answer", "1 the replay's counts"):
        assert fact in alarm
    assert "the loop counted 10 rounds and 5 accepted, the replay 9 rounds and 6 accepted." in alarm
    [note] = find_warnings(scorecard(exact=False, dtype="bfloat16"))
    assert note.startswith("Loop and replay differ, as rounding in bfloat16 makes them:")


def test_a_busy_machine_is_told():
    [warning] = find_warnings(scorecard(settled=False))
    assert warning.startswith("Step times had not settled after 20 warm-up repetitions")


def test_a_live_decoding_that_met_other_work_is_told():
    assert find_warnings(scorecard(target_ms=19.5 / 1.2)) == []  # 20.5 ms a token, of which 1 is the loop's
    [warning] = find_warnings(scorecard(target_ms=19.4 / 1.2))
    assert warning.startswith("The target alone took 20.5 ms a token in live decoding, and its step 16.2 ms")


def test_answers_the_target_would_not_give_again_are_told_in_float32():
    [warning] = find_warnings(scorecard(changed=3))
    assert "would choose another token at 3 places" in warning
    assert find_warnings(scorecard(changed=3, dtype="bfloat16")) == []


@pytest.mark.parametrize(("scored", "found"), [(1, "One scored prompt gives"), (5, "5 scored prompts give")])
def test_few_prompts_are_told(scored, found):
    assert find_warnings(scorecard(scored=scored)) == [f"{found} no interval: 6 are the least."]


def full_scorecard(*temperatures):
    """Two drafts; each figure of draft d at temperature t is its own number."""
    pairs = [(at, draft) for at in temperatures for draft in ("early", "late")]
    rows = [
        records.acceptance(
            draft, at, {n: [5] for n in LOOKAHEADS}, [10], alpha=alpha, interval=(alpha - 0.0625, alpha + 0.0625)
        )
        for (at, draft), alpha in zip(pairs, (0.25, 0.5, 0.375, 0.75), strict=False)
    ]
    speedups = [
        records.speedup(draft, at, 1.1 + n, n, LOOKAHEADS, break_even=n / 8)
        for n, (at, draft) in enumerate(pairs, start=1)
    ]
    return records.scorecard(
        rows,
        records.latency(20.0, dict.fromkeys(LOOKAHEADS, 25.0), {"early": (2.0, 3.0), "late": (4.0, 5.0)}, None),
        speedups,
        live=records.live("late", 3) if 0.0 in temperatures else None,
        verdict="Faster.",
        warnings=("Mind the gap.",),
        differences=tuple(difference(at) for at in temperatures),
    )


def difference(temperature):
    """Of the late draft over the early one, at every lookahead."""
    gain = Estimate(0.25, (0.2, 0.3))
    counted = TokenTable(both=0, only_draft=0, only_baseline=0, neither=0)
    return DifferenceRow(
        draft="late",
        baseline="early",
        temperature=temperature,
        rule="rule",
        alpha=gain,
        lookahead=tuple(TauDifference(lookahead=at, tau=gain) for at in LOOKAHEADS),
        other_rules=(),
        greedy_match=MatchDifference(0.0, None, counted, 1.0, PromptSigns(more=0, fewer=0, equal=1), 1.0, 1.0),
    )


def test_the_headline_in_full():
    assert headline(full_scorecard(1.0, 0.0)).splitlines() == [
        "Faster.",
        (
            "That speed decides: whole answers to 4 prompts, reading them included, beside the target alone in the "
            "same turns; faster if its interval lies above 1. What it comes of:"
        ),
        "WARNING: Mind the gap.",
        (
            "share of proposed tokens that the target keeps (acceptance, alpha) at temperature 1: early 0.250 "
            "[0.188, 0.312], late 0.500 [0.438, 0.562]; gain 0.250 [0.200, 0.300] over early"
        ),
        (
            "share of proposed tokens that the target keeps (acceptance, alpha) at temperature 0: early 0.375 "
            "[0.312, 0.438], late 0.750 [0.688, 0.812]; gain 0.250 [0.200, 0.300] over early"
        ),
        ("milliseconds a token: draft 4.00, target 20.00; one of the draft is 0.200 of one of the target (cost ratio)"),
        (
            "speed: 1.12x [1.05, 1.20]; without reading the prompts 1.50x [1.25, 1.75], where acceptance and step "
            "times promise 5.10x"
        ),
        "tokens best proposed in a round (lookahead): 4; pays from an acceptance of 0.500 on",
    ]


def with_ways(record, value, interval, same_text=4):
    """Live decoding by the text alone and by a policy too; the policy's speed-up is the one given."""

    def way(name, lookahead, speedup, same_text):
        spent = Spent(tokens=10, prefill_s=1.0, decode_s=2.0, ms_per_token=200.0)
        counts = {"tau": 2.0, "looked_up_rounds": 1, "plain_rounds": 1, "rounds": 5, "same_text": same_text}
        return WayRow(way=name, lookahead=lookahead, speedup=speedup, decoding_speedup=speedup, spent=spent, **counts)

    ways = (
        way("n-gram lookup", 5, Estimate(1.25, (1.0, 1.5)), 4),
        way("draft with its policy", 2, Estimate(value, interval), same_text),
    )
    over = (
        OverLookup(way="draft", speedup=Estimate(0.875, (0.75, 1.0))),
        OverLookup(way="draft with its policy", speedup=Estimate(1.125, (1.0625, 1.25))),
    )
    return replace(record, live=replace(record.live, ways=ways, over_lookup=over))


def test_where_a_policy_was_tuned_the_verdict_is_about_it():
    faster = with_ways(scorecard(0.5, (0.4, 0.6)), 1.375, (1.25, 1.5))
    assert verdict(faster) == (
        "Faster: 1.38x [1.25, 1.50] the speed of the target alone at batch 1, temperature 0, draft with its policy, "
        "lookahead 2, on this CPU "
        "(Abacus 9, 2 threads)."
    )
    assert verdict(with_ways(scorecard(), 0.9, (0.8, 0.95))).startswith("Slower: 0.90x [0.80, 0.95]")


def test_the_headline_tells_every_way_and_each_with_a_draft_over_looking_up():
    lines = headline(with_ways(full_scorecard(0.0), 1.5, (1.25, 1.75))).splitlines()
    assert lines[-1] == (
        "without any draft, n-gram lookup, lookahead 5: 1.25x [1.00, 1.50]; over that, draft 0.88x [0.75, 1.00], "
        "draft with its policy 1.12x [1.06, 1.25]"
    )
    assert any(line.startswith("speed of the draft alone: ") and line.endswith("promise 3.10x") for line in lines)


def test_a_text_that_is_not_plain_decodings_is_an_alarm_in_float32():
    [alarm] = find_warnings(with_ways(scorecard(), 1.5, (1.25, 1.75), same_text=3))
    assert alarm.startswith("IN FLOAT32 1 TEXTS OF DRAFT WITH ITS POLICY ARE NOT THOSE OF PLAIN DECODING")
    assert find_warnings(with_ways(scorecard(dtype="bfloat16"), 1.5, (1.25, 1.75), same_text=3)) == []


def test_without_temperature_zero_the_forecast_is_that_of_the_first_one():
    record = full_scorecard(1.0, 0.5)
    assert "Predicted at batch 1 and temperature 1: 3.10x at lookahead 2, on this CPU" in verdict(record)
    assert "speed: not measured; predicted from acceptance and step times 3.10x" in headline(record)


def test_a_break_even_that_does_not_exist_is_said():
    assert alpha_words(None) == "none: no alpha pays"
    assert alpha_words(0.8324) == "0.832"


def test_values_show_their_interval_or_none():
    assert with_interval(Estimate(0.5123, (0.48, 0.5444))) == "0.512 [0.480, 0.544]"
    assert with_interval(Estimate(1.5, None), times=True) == "1.50x"
