"""Tables and warnings of scorecards."""

from dataclasses import replace

import pytest

from eval.records.evidence import StepEvidence, ThreadStep
from eval.report import read_runs
from eval.scorecard_tables import (
    find_warnings,
    results,
    scored_drafts,
    timing_warnings,
)
from tests.eval.test_report import scored  # noqa: F401  # a fixture

QUIET = StepEvidence(
    threads=2,
    by_threads=(ThreadStep(threads=1, ms=60.0), ThreadStep(threads=2, ms=40.0)),
    refused=0.01,
    others=0.02,
    load_average=0.1,
)


def changed(record, **changes):
    """A pydantic record with other values."""
    return record.model_copy(update=changes)


@pytest.fixture(scope="module")
def card(scored):  # noqa: F811
    [run] = read_runs([scored / "noisy"])
    return changed(run.card, latency=changed(run.card.latency, evidence=QUIET, settled=True))


def test_every_acceptance_method_has_its_row(card):
    table = results(scored_drafts({"run": card}))
    expected = [method.rule for row in card.acceptance for method in (row, *row.other_rules)]
    assert sorted(row[2] for row in table.rows) == sorted(expected)
    assert len(results(scored_drafts({"run": card}), all_methods=False).rows) == len(card.acceptance)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, []),
        ({"by_threads": (ThreadStep(threads=1, ms=1.5), ThreadStep(threads=2, ms=105.0))}, ["OMP_NUM_THREADS=1"]),
        ({"by_threads": (ThreadStep(threads=2, ms=40.0), ThreadStep(threads=4, ms=10.0))}, []),
        ({"refused": 0.4}, ["40%"]),
        ({"others": 1.9}, ["1.9 cores"]),
        ({"refused": None, "others": None}, []),
    ],
)
def test_step_times_of_a_busy_machine_are_warned_of(changes, named):
    warnings = timing_warnings(replace(QUIET, **changes))
    assert len(warnings) == len(named)
    assert all(name in warning for name, warning in zip(named, warnings, strict=True))


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
