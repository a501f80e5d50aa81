"""The sentence a reader believes: it must follow from the interval, whatever the value."""

import pytest

from eval.scorecard.verdict import alpha_words, find_warnings, verdict, with_interval

MACHINE = {"hardware": {"processor": "Abacus 9", "accelerators": ["Beads 2"]}}


def scorecard(value=1.12, interval=(1.05, 1.2), *, exact=True, dtype="float32", device="cpu", settled=True, changed=0):
    counts = {"rounds": 10.0, "accepted": 5.0}
    agreement = {"exact": exact, "same_text": 3, "same_as_recorded": 2, "same_counts": 1}
    return {
        "live": {
            "lookahead": 3,
            "prompts": 4,
            "speedup": {"value": value, "interval": interval and list(interval)},
            "agreement": {**agreement, "loop": counts, "replay": {"rounds": 9.0, "accepted": 6.0}},
        },
        "acceptance": [{"temperature": 0.0, "target_changed_tokens": changed}],
        "prompts": {"scored": 4},
        "latency": {"settled": settled, "warm_up_repeats": 20},
        "settings": {"dtype": dtype, "device": device, "threads": 2},
        "provenance": MACHINE,
    }


@pytest.mark.parametrize(
    ("value", "interval", "start"),
    [
        (1.12, (1.05, 1.2), "1.12x [1.05, 1.20] faster at batch 1, temperature 0, lookahead 3"),
        (0.85, (0.8, 0.9), "Not faster here: 0.85x [0.80, 0.90] the speed of the target alone at batch 1"),
        (1.12, (0.99, 1.3), "No difference shown: 1.12x [0.99, 1.30] the speed of the target alone"),
        (0.95, (0.9, 1.0), "No difference shown: 0.95x [0.90, 1.00] the speed of the target alone"),
        (1.12, None, "Unclear: 1.12x the speed of the target alone"),
    ],
)
def test_the_verdict_follows_from_the_interval(value, interval, start):
    assert verdict(scorecard(value, interval)).startswith(start)


def test_the_verdict_names_the_machine():
    assert "on this CPU (Abacus 9, 2 threads)" in verdict(scorecard())
    assert "on this GPU (Beads 2)" in verdict(scorecard(device="cuda:0"))


def test_nothing_to_warn_of():
    assert find_warnings(scorecard()) == []


def test_a_disagreement_is_an_alarm_in_float32_and_expected_in_half_precision():
    [alarm] = find_warnings(scorecard(exact=False))
    assert alarm.startswith("LOOP AND REPLAY DISAGREE IN FLOAT32")
    for fact in ("Of 4 prompts, 3 have", "2 the recorded answer", "1 the replay's counts", "10 rounds and 5 accepted"):
        assert fact in alarm
    [note] = find_warnings(scorecard(exact=False, dtype="bfloat16"))
    assert note.startswith("Loop and replay differ, as rounding in bfloat16 makes them:")


def test_a_busy_machine_is_told():
    [warning] = find_warnings(scorecard(settled=False))
    assert warning.startswith("Step times had not settled after 20 warm-up repetitions")


def test_answers_the_target_would_not_give_again_are_told_in_float32():
    [warning] = find_warnings(scorecard(changed=3))
    assert "would choose another token at 3 places" in warning
    assert find_warnings(scorecard(changed=3, dtype="bfloat16")) == []


def test_a_break_even_that_does_not_exist_is_said():
    assert alpha_words(None) == "none: no alpha pays"
    assert alpha_words(0.8324) == "0.832"


def test_values_show_their_interval_or_none():
    assert with_interval({"value": 0.5123, "interval": [0.48, 0.5444]}) == "0.512 [0.480, 0.544]"
    assert with_interval({"value": 1.5, "interval": None}, times=True) == "1.50x"
