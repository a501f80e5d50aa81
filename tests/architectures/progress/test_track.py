"""Every item comes through; a terminal has a bar, a log file a line a minute."""

import pytest

from architectures.progress import track as tracking
from architectures.progress.track import track


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Whatever else runs beside the tests, nothing is told of it."""
    monkeypatch.setattr(tracking, "tell_load", lambda description: None)


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when a test says so."""
    now = [1000.0]
    monkeypatch.setattr(tracking.time, "monotonic", lambda: now[0])
    return now


def test_a_log_file_gets_a_line_a_minute_with_the_time_left(clock, capsys):
    for _ in track(range(10), description="Greedy removal", total=10):
        clock[0] += 30
    assert capsys.readouterr().err.splitlines() == [
        "Greedy removal: 2 of 10, 0:01:00 gone, 0:04:00 left",
        "Greedy removal: 4 of 10, 0:02:00 gone, 0:03:00 left",
        "Greedy removal: 6 of 10, 0:03:00 gone, 0:02:00 left",
        "Greedy removal: 8 of 10, 0:04:00 gone, 0:01:00 left",
    ]


def test_items_that_take_longer_than_a_minute_have_a_line_each(clock, capsys):
    for _ in track(range(3), description="Layers", total=3):
        clock[0] += 90.4
    assert capsys.readouterr().err.splitlines() == [
        "Layers: 1 of 3, 0:01:30 gone, 0:03:01 left",
        "Layers: 2 of 3, 0:03:01 gone, 0:01:30 left",
    ]


def test_a_loop_that_is_done_in_a_minute_says_nothing(clock, capsys):
    for _ in track(range(59), description="Short", total=59):
        clock[0] += 1
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("is_terminal", [True, False])
def test_every_item_comes_through(monkeypatch, capsys, is_terminal):
    monkeypatch.setattr(tracking.sys.stderr, "isatty", lambda: is_terminal)
    assert list(track(iter("abc"), description="Letters", total=3)) == ["a", "b", "c"]
    assert ("Letters" in capsys.readouterr().err) is is_terminal
