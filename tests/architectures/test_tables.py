"""Tables and text for a terminal and as Markdown."""

import shutil
import sys
from os import terminal_size

from architectures.console import Table, markdown, terminal

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
