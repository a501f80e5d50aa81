"""The console: tables and text as a terminal and Markdown have them, and the progress of loops."""

import re
import shutil
import sys
from os import terminal_size

import pytest

from architectures import console as module
from architectures.console import Table, markdown, progress, terminal, track


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_a_line_a_minute_without_a_terminal(clock, capsys):
    for _ in track(range(4), description="work", total=4):
        clock[0] += 40
    assert re.findall(r"work: (\d) of 4, (.*) left", capsys.readouterr().err) == [("2", "0:01:20")]


def test_the_time_left_counts_work_and_not_items(clock, capsys):
    with progress("work", total=3, whole=10) as advance:
        for clock[0], work in ((60, 0.05), (120, 1.95)):  # below a hundredth the speed is unknown
            advance(work)
    assert re.findall(r"(\d of 3, .*) left", capsys.readouterr().err) == ["1 of 3, ?", "2 of 3, 0:08:00"]


def test_a_short_loop_prints_nothing(capsys):
    assert list(track("abc", description="work", total=3)) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""


STEPS = Table(("name", "ms"), [("draft|[x]", 1.5), ("y", 12)], "Steps")


def test_a_table_in_both_media():
    assert terminal(STEPS) == "Steps\nname        ms\ndraft|[x]  1.5\ny           12"
    assert markdown(STEPS) == "Steps\n\n| name | ms |\n| --- | --- |\n| draft\\|[x] | 1.5 |\n| y | 12 |"


def test_cells_are_folded_to_the_terminal_and_nowhere_else(monkeypatch):
    wide = Table(("a", "b"), [("x" * 300, "y")])
    assert len(terminal(wide).splitlines()) == 2
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda **_: terminal_size((80, 24)))
    lines = terminal(wide).splitlines()
    assert max(map(len, lines)) <= 80
    assert "".join(lines).count("x") == 300
