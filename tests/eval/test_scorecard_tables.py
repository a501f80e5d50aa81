"""Tables and warnings of scorecards."""

import pytest

from eval.report import read_runs
from eval.scorecard_tables import (
    find_warnings,
    results,
    scored_drafts,
)
from tests.eval.test_report import scored  # noqa: F401  # a fixture


def changed(record, **changes):
    """A pydantic record with other values."""
    return record.model_copy(update=changes)


@pytest.fixture(scope="module")
def card(scored):  # noqa: F811
    [run] = read_runs([scored / "noisy"])
    return changed(run.card, latency=changed(run.card.latency, settled=True))


def test_every_acceptance_method_has_its_row(card):
    table = results(scored_drafts({"run": card}))
    expected = [method.rule for row in card.acceptance for method in (row, *row.other_rules)]
    assert sorted(row[2] for row in table.rows) == sorted(expected)
    assert len(results(scored_drafts({"run": card}), all_methods=False).rows) == len(card.acceptance)


def undisturbed(card):
    """The same scorecard with plain decoding as fast as its timed step."""
    ms = card.latency.target.median_ms
    lives = [changed(live, plain=changed(live.plain, ms_per_token=ms)) for live in card.lives]
    return changed(card, lives=tuple(lives))


def first_live(card, **changes):
    """The same scorecard with another greedy decoding."""
    first, *others = card.lives
    return changed(card, lives=(changed(first, **changes), *others))


def test_a_sound_scorecard_warns_of_nothing(card):
    assert find_warnings(undisturbed(card)) == []


def test_disagreement_of_decoding_and_replay_is_a_fault_in_float32_and_rounding_otherwise(card):
    sound = undisturbed(card)
    wrong = first_live(sound, agreement=changed(sound.live.agreement, exact=False))
    [warning] = find_warnings(wrong)
    assert "report it" in warning
    rounded = changed(wrong, settings=changed(wrong.settings, dtype="bfloat16"))
    [warning] = find_warnings(rounded)
    assert "bfloat16" in warning


def test_unsettled_steps_disturbed_decoding_and_few_prompts_are_warned_of(card):
    sound = undisturbed(card)
    assert len(find_warnings(changed(sound, latency=changed(sound.latency, settled=False)))) == 1
    slow = changed(sound.live.plain, ms_per_token=3 * sound.latency.target.median_ms + 2)
    assert len(find_warnings(first_live(sound, plain=slow))) == 1
    assert len(find_warnings(changed(sound, prompts=changed(sound.prompts, scored=1)))) == 1
