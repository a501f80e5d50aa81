"""Tables and text for a terminal and as Markdown."""

import shutil
import sys
from os import terminal_size

from architectures.tables import WIDTH, Section, Table, code, facts, markdown, plural, replace_between, terminal

STEPS = Table(("name", "ms"), [("draft|[x]", 1.5), ("y", 12)], "Steps")


def test_a_table_in_both_media():
    assert terminal(STEPS) == "Steps\nname        ms\ndraft|[x]  1.5\ny           12"
    assert markdown(STEPS) == "Steps\n\n| name | ms |\n| --- | --- |\n| draft\\|[x] | 1.5 |\n| y | 12 |"


def test_names_and_values_in_both_media():
    assert terminal(facts([("seed", 17), ("machine", "a")])) == "seed     17\nmachine  a"
    assert markdown(facts([("seed", 17), ("machine", "a")])) == "- seed: 17\n- machine: a"


def test_code_is_indented_in_a_terminal_and_fenced_in_markdown():
    assert terminal(code("a \\\n  b")) == "  a \\\n    b"
    assert markdown(code("a")) == "```\na\n```"


def test_sections_are_headings_in_markdown_and_indent_in_a_terminal():
    page = Section("Speed", ["x", Section("Batch 2", [facts([("n", 1)])])])
    assert markdown(page, level=2) == "## Speed\n\nx\n\n### Batch 2\n\n- n: 1"
    assert terminal(page, "y") == "Speed\n  x\n  Batch 2\n    n  1\n\ny"


def test_paragraphs_under_a_title_are_broken_between_words():
    first, *others = terminal(Section("Speed", [" ".join(["word-with-hyphens"] * 20)])).splitlines()[1:]
    assert first.startswith("  word")
    assert others
    assert all(line.startswith("    word") for line in others)
    assert max(map(len, (first, *others))) <= WIDTH


def test_cells_are_folded_to_the_terminal_and_nowhere_else(monkeypatch):
    wide = Table(("a", "b"), [("x" * 300, "y")])
    assert len(terminal(wide).splitlines()) == 2
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda **_: terminal_size((80, 24)))
    lines = terminal(wide).splitlines()
    assert max(map(len, lines)) <= 80
    assert "".join(lines).count("x") == 300


def test_plural_and_replacing_between_marks():
    assert [plural(1, "layer"), plural(1000, "layer"), plural(2, "pass", "passes")] == [
        "1 layer",
        "1,000 layers",
        "2 passes",
    ]
    assert replace_between("a<b>old<e>c", "<b>", "<e>", "new") == "a<b>\n\nnew\n\n<e>c"
