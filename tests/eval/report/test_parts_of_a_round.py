"""Where a round's time goes: catch-up is what rounds after a wholly kept one draft longer."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from architectures.pages.blocks import Absent, Sentence
from eval.acceptance.estimates import Resampling
from eval.report.round_time import catch_up, catch_up_notes, measured_time, predicted_time
from eval.report_inputs.cards import read_card
from eval.report_inputs.drafts import scored_drafts
from eval.rounds.round_trace import TracedRound

STEP_S, CATCH_UP_S = 0.004, 0.003
RESAMPLING = Resampling(confidence=0.5, num_resamples=50, seed=1)  # two prompts are enough for an interval


def text(prompt, accepted, lookahead=2):
    """Rounds that accepted so many tokens each; drafting takes a step a token, and catching up where it is due."""
    rounds, start, before = [], 0, 0
    for kept in accepted:
        draft_s = lookahead * STEP_S + (CATCH_UP_S if before == lookahead else 0)
        rounds.append(
            TracedRound(
                run="live decoding",
                prompt=prompt,
                sample=0,
                rule="exact_greedy_draft",
                start=start,
                lookahead=lookahead,
                proposed=lookahead,
                accepted=kept,
                emitted=kept + 1,
                stopped=False,
                rows=1,
                draft_s=draft_s,
                verify_s=0.01,
            )
        )
        start, before = start + kept + 1, kept
    return rounds


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=4))
def test_catch_up_is_found_where_it_was_put(kept):
    found = catch_up([one for place, counts in enumerate(kept) for one in text(f"p:{place}", counts)], RESAMPLING)
    due = sum(before == 2 for counts in kept for before in counts[:-1])
    total = sum(map(len, kept))
    if due == 0:  # the first round of a text never has any to do
        assert found is None
        return
    assert found is not None
    assert (found.after_full, found.others) == (due, total - due)
    assert found.share == pytest.approx(due / total)
    assert found.more_ms.value == pytest.approx(1000 * CATCH_UP_S)
    assert found.is_shown == (found.more_ms.interval is not None)


def test_texts_begin_anew():
    """The last round of one text keeps everything; the first of the next one has nothing to catch up on."""
    assert catch_up([*text("p:1", [0, 2]), *text("p:2", [0, 0])], RESAMPLING) is None


def test_rounds_that_proposed_less_are_not_compared():
    whole = text("p:1", [2, 0, 0])
    cut = replace(whole[2], proposed=1, draft_s=9.0)
    found = catch_up([*whole[:2], cut], RESAMPLING)
    assert (found.after_full, found.others, found.share) == (1, 1, 1 / 3)
    assert found.more_ms.value == pytest.approx(1000 * CATCH_UP_S)


def test_rounds_that_proposed_nothing_kept_nothing_wholly():
    rounds = text("p:1", [2, 0])
    empty = replace(rounds[0], proposed=0, accepted=0, emitted=1)
    assert catch_up([empty, *text("p:1", [1, 0])], RESAMPLING) is None


@pytest.fixture
def one(runs):
    [found, *_] = scored_drafts([read_card(runs / "deep" / "eval" / "scorecard.json")])
    return found


def with_rounds(one, rounds):
    return replace(one, card=replace(one.card, rounds=rounds))


def test_parts_make_up_the_whole_whatever_is_told_apart(one):
    spent, counted = one.live.speculative, one.live.agreement.loop.rounds
    traced = (*text("p:1", [2, 0, 2, 1]), *text("p:2", [2, 1]), *text("p:3", [2, 1]))
    for told in (one, with_rounds(one, None), with_rounds(one, traced)):
        found = measured_time(told)
        assert found.total_ms == pytest.approx(1000 * spent.decode_s / counted)
        assert found.draft_ms + (found.catch_up_ms or 0) == pytest.approx(1000 * spent.draft_s / counted)
        assert found.verify_ms == pytest.approx(1000 * spent.verify_s / counted)
    assert measured_time(with_rounds(one, None)).catch_up_ms is None
    assert measured_time(with_rounds(one, traced)).catch_up_ms == pytest.approx(1000 * CATCH_UP_S * 4 / 8)


def test_a_catch_up_that_noise_hides_is_not_told(one):
    """One prompt decides nothing, nor do prompts that do not agree, though the mean be above 0, nor less time."""
    first, second, third = (text(f"p:{place}", [2, 0, 2, 1]) for place in (1, 2, 3))
    turned = [replace(each, draft_s=0.0125 - each.draft_s / 2) for each in third]
    less = [replace(each, prompt=prompt) for prompt in ("p:3", "p:4", "p:5") for each in turned]
    for hidden in (first, [*first, *second], [*first, *second, *turned], less):
        told = with_rounds(one, tuple(hidden))
        assert measured_time(told).catch_up_ms is None
        [note] = catch_up_notes(told)
        assert isinstance(note, Absent)
        assert "not decided; the catch-up is within draft" in note.text
    [note] = catch_up_notes(with_rounds(one, (*first, *second, *third)))
    assert isinstance(note, Sentence)
    assert note.text == (
        "draft: drafting took 3.000 [3.000, 3.000] ms more in 6 rounds after a wholly kept one than in 6 others."
    )


def test_the_prediction_is_that_of_the_speed_up(one):
    """tau times the target's step over this round is the predicted speed-up."""
    found, live = predicted_time(one), one.live
    forecast = one.forecast(0.0).at(live.lookahead)
    plain_ms = one.row(0.0).at(live.lookahead).tau.value * one.card.record.latency.target.median_ms
    assert plain_ms / found.total_ms == pytest.approx(forecast.predicted)
