"""What a process asked of the processor and did not get, by files as Linux writes them."""

import os
from dataclasses import replace

import pytest

from architectures.progress import processor, track
from architectures.progress.processor import (
    Contention,
    CurrentStage,
    ProcessorTimes,
    contention,
    processor_times,
    refused_words,
)
from distill.stages.running import timed

START = ProcessorTimes(at_s=100.0, threads={1: (5.0, 1.0), 2: (7.0, 0.0)}, own_s=12.0, all_s=1000.0)


def after(seconds=10.0, **changes):
    return replace(START, at_s=START.at_s + seconds, **changes)


def test_threads_that_waited_were_refused_their_share():
    later = after(threads={1: (11.0, 4.0), 2: (10.0, 0.0)}, own_s=21.0, all_s=1020.0)
    told = contention(START, later)
    assert told.refused == pytest.approx(3 / 12)  # 9 s ran, 3 s waited
    assert told.others == pytest.approx((20 - 9) / 10)


def test_threads_that_began_or_ended_meanwhile():
    """One that is gone takes its numbers along; a new one started from nothing."""
    assert contention(START, after(threads={1: (6.0, 1.0), 9: (3.0, 4.0)})).refused == pytest.approx(4 / 8)


def test_a_process_that_slept_says_nothing():
    assert contention(START, after(threads={1: (5.1, 1.1), 2: (7.0, 0.0)})).refused is None


def test_nothing_is_made_up_where_nobody_counts(tmp_path):
    nothing = processor_times(tmp_path)
    assert (nothing.threads, nothing.all_s) == (None, None)
    assert contention(nothing, nothing) == Contention(None, None)


def test_what_the_kernel_writes_is_read(tmp_path):
    for thread, text in ((7, "1500000000 250000000 9\n"), (8, "0 0 0\n")):
        folder = tmp_path / "self" / "task" / str(thread)
        folder.mkdir(parents=True)
        (folder / "schedstat").write_text(text)
    (tmp_path / "stat").write_text("cpu  100 10 20 5000 300 4 3 2 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n")
    told = processor_times(tmp_path)
    assert told.threads == {7: (1.5, 0.25), 8: (0.0, 0.0)}
    assert told.all_s == pytest.approx((100 + 10 + 20 + 4 + 3 + 2) / os.sysconf("SC_CLK_TCK"))


@pytest.mark.parametrize(("refused", "told"), [(None, False), (0.0, False), (0.09, False), (0.1, True), (0.6, True)])
def test_a_share_worth_a_word_comes_with_the_remedy(refused, told):
    words = refused_words(refused)
    assert (words is not None) is told
    if words is not None:
        assert f"{refused:.0%} of the processor time" in words
        assert "OMP_NUM_THREADS" in words


@pytest.fixture
def refused(monkeypatch):
    """Threads that a test lets run and wait: refused(ran_s, waited_s) since the start."""
    now = [START]
    monkeypatch.setattr(processor, "processor_times", lambda: now[0])

    def after_seconds(ran_s, waited_s):
        now[0] = after(ran_s, threads={1: (5.0 + ran_s, 1.0 + waited_s), 2: (7.0, 0.0)})

    return after_seconds


def test_a_load_is_told_as_soon_as_it_is_seen_and_once_a_stage(refused):
    CurrentStage.begin()
    refused(10.0, 0.2)
    assert CurrentStage.watch.told() is None
    refused(10.0, 10.0)
    assert "did not get 50% of the processor time" in CurrentStage.watch.told()
    assert CurrentStage.watch.told() is None
    refused(0.0, 0.0)
    CurrentStage.begin()
    refused(6.0, 4.0)
    assert "40%" in CurrentStage.watch.told()


def test_each_stage_of_a_run_tells_it(refused, capsys):
    for name in ("generate", "eval"):
        refused(0.0, 0.0)
        timed(name, lambda: refused(6.0, 4.0))
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == ["generate", "eval"]


def test_a_line_of_progress_is_followed_by_it(refused, monkeypatch, capsys):
    refused(0.0, 0.0)
    CurrentStage.begin()
    monkeypatch.setattr(track, "LINE_INTERVAL_S", 0)
    for _ in track.track(range(4), description="Letters", total=4):
        refused(6.0, 4.0)
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("Letters: this process did not get 40%") for line in lines] == [False, True, False, False]
