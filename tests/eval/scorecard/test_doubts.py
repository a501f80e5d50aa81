"""Step times that are not to be believed are told by made-up numbers, and nothing is called faster by them."""

from dataclasses import replace

import pytest

from eval.pages.doubts import DISTRUSTED, chosen_words, doubt_words, doubts, is_distrusted
from eval.pages.headline import headline
from eval.pages.verdict import find_warnings, verdict
from eval.records.evidence import ModelStep, StepEvidence, ThreadStep
from tests.eval import records
from tests.eval.scorecard.test_verdict import scorecard

QUIET = StepEvidence(
    threads=2,
    by_threads=(ThreadStep(threads=1, ms=60.0), ThreadStep(threads=2, ms=40.0)),
    chosen_from=(),
    steps=(
        ModelStep(model="target", layers=30, ms=40.0, least_ms=25.0),
        ModelStep(model="draft", layers=1, ms=3.0, least_ms=2.0),
    ),
    refused=0.01,
    others=0.02,
    load_average=0.1,
)


def by_threads(**taken):
    steps = tuple(ThreadStep(threads=int(count.removeprefix("t")), ms=ms) for count, ms in taken.items())
    return replace(QUIET, by_threads=steps)


def steps(*, target_ms, least_ms=0.01, layers=4):
    return replace(QUIET, steps=(ModelStep(model="target", layers=layers, ms=target_ms, least_ms=least_ms),))


def test_a_quiet_machine_gives_no_doubt():
    assert doubts(QUIET) == doubts(None) == []


def test_a_step_that_one_thread_takes_in_a_hundredth_is_not_to_be_believed():
    """As a tiny target was seen on two threads beside another program."""
    [doubt] = doubts(by_threads(t1=1.5, t2=105.0))
    assert doubt.is_grave
    assert "takes 105 ms with 2 threads and 1.5 ms with 1 thread" in doubt.words
    assert "num_threads=1" in doubt.words


@pytest.mark.parametrize(("own_ms", "told", "grave"), [(12.0, 0, False), (13.0, 1, False), (20.0, 1, True)])
def test_how_much_faster_fewer_threads_must_be(own_ms, told, grave):
    found = doubts(by_threads(t1=10.0, t2=own_ms))
    assert (len(found), any(doubt.is_grave for doubt in found)) == (told, grave)


def test_more_threads_than_were_used_say_nothing_of_them():
    assert doubts(by_threads(t2=40.0, t4=10.0)) == []
    assert doubts(replace(QUIET, by_threads=())) == []


def test_a_step_far_beyond_its_bytes_and_flops_is_not_to_be_believed():
    [doubt] = doubts(steps(target_ms=105.0))
    assert doubt.is_grave
    assert "A step of target took 105 ms, and should take 13.1 ms at the very most" in doubt.words
    assert doubts(steps(target_ms=13.0)) == []
    assert doubts(steps(target_ms=105.0, least_ms=None)) == []


def test_every_step_of_the_documented_machines_is_believed():
    """SmolLM2-135M in float32 of docs/latency.md, by what one of two threads reads; and a draft in slow bfloat16."""
    for ms, least_ms, layers in ((54.78, 43.5, 30), (86.34, 43.5, 30), (16.88, 16.0, 6), (89.5, 55.0, 2)):
        assert doubts(steps(target_ms=ms, least_ms=least_ms, layers=layers)) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"refused": 0.4}, "waited for 40% of the processor time that it asked for"),
        ({"others": 1.9}, "other programs kept 1.9 cores busy"),
        ({"refused": 0.4, "others": 1.9}, "asked for and other programs kept 1.9 cores busy"),
    ],
)
def test_a_load_meanwhile_is_said_and_alone_decides_nothing(changes, told):
    [doubt] = doubts(replace(QUIET, **changes))
    assert told in doubt.words
    assert not doubt.is_grave


def test_what_nobody_counts_is_no_doubt():
    assert doubts(replace(QUIET, refused=None, others=None)) == []


def test_the_grave_ones_come_first():
    found = doubts(replace(by_threads(t1=1.5, t2=105.0), refused=0.4))
    assert [doubt.is_grave for doubt in found] == [True, False]


def test_what_auto_picked_is_told():
    chosen = replace(QUIET, chosen_from=QUIET.by_threads)
    assert chosen_words(chosen) == "2 threads, picked by the target's step (1 thread: 60 ms, 2 threads: 40 ms)"
    assert chosen_words(QUIET) is chosen_words(None) is None


def card_with(evidence, **changes):
    card = scorecard(**changes)
    return replace(card, latency=replace(card.latency, evidence=evidence))


def test_nothing_is_called_faster_by_steps_that_are_not_to_be_believed():
    card = card_with(by_threads(t1=1.5, t2=105.0), value=1.91, interval=(1.6, 2.2))
    assert verdict(card) == (
        f"{DISTRUSTED}, on this CPU (Abacus 9, 2 threads). Measured meanwhile: 1.91x [1.60, 2.20]."
    )
    [warning] = find_warnings(card)
    assert "105 ms with 2 threads" in warning
    first = replace(card, verdict=verdict(card), warnings=(warning,))
    assert headline(first).splitlines()[1] == f"WARNING: {warning}"


def test_a_load_is_warned_of_and_the_interval_decides():
    card = card_with(replace(QUIET, refused=0.4), value=1.91, interval=(1.6, 2.2))
    assert verdict(card).startswith("Faster: 1.91x [1.60, 2.20]")
    assert find_warnings(card) == doubt_words(card.latency.evidence)


def test_a_target_that_took_twice_its_step_in_live_decoding_decides_nothing():
    live = records.live(value=1.91, interval=(1.6, 2.2))
    slow = scorecard(1.91, (1.6, 2.2), target_ms=live.plain.ms_per_token / 3)
    assert verdict(slow).startswith(DISTRUSTED)
    assert is_distrusted(slow.latency.evidence) is False
