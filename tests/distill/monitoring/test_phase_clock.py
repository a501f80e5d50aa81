"""Phases leave no gap, and a watchdog speaks after silence and only then."""

import time

import pytest

from distill.monitoring.phase_clock import PhaseClock, Watchdog


@pytest.fixture
def clock(monkeypatch):
    """A clock whose hands are moved by hand, and the function that moves them."""
    now = [100.0]
    monkeypatch.setattr("distill.monitoring.phase_clock.time.perf_counter", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return PhaseClock(on_gpu=False), wait


def test_every_second_belongs_to_one_phase(clock):
    clock, wait = clock
    wait(1)
    clock.switch("data")
    wait(2)
    clock.switch("student")
    wait(4)
    clock.switch("data")
    wait(8)
    assert clock.lap() == {"other": 1, "data": 10, "student": 4}


def test_a_phase_within_another_interrupts_it(clock):
    clock, wait = clock
    clock.switch("student")
    wait(1)
    with clock.phase("teacher"):
        wait(2)
    assert clock.current == "student"
    wait(4)
    assert clock.lap() == {"other": 0, "student": 5, "teacher": 2}


def test_a_phase_ends_with_an_error_too(clock):
    clock, _ = clock
    with pytest.raises(RuntimeError), clock.phase("teacher"):
        raise RuntimeError
    assert clock.current == "other"


def test_a_lap_begins_where_the_one_before_ended(clock):
    clock, wait = clock
    clock.switch("student")
    wait(1)
    clock.lap()
    wait(2)
    assert clock.lap() == {"student": 2}


def test_the_watchdog_speaks_after_every_silence(capsys):
    dog = Watchdog(lambda: "batch 3, phase teacher", silence_s=0.2)
    dog.start()
    time.sleep(0.5)
    dog.stop()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0] == "nothing finished for 0 s: batch 3, phase teacher"


def test_the_watchdog_is_silent_while_something_happens(capsys):
    dog = Watchdog(lambda: "nothing", silence_s=0.5)
    dog.start()
    for _ in range(8):
        time.sleep(0.1)
        dog.beat()
    dog.stop()
    assert capsys.readouterr().err == ""


def test_a_watchdog_that_never_started_stops():
    Watchdog(lambda: "nothing").stop()
