"""Every kind of block in every medium: as Markdown, for a terminal, and as HTML."""

from typing import get_args

import pytest

from architectures.pages.blocks import (
    Absent,
    Block,
    Caution,
    Code,
    Facts,
    Figure,
    Folded,
    Items,
    MarkedText,
    Section,
    Sentence,
    Table,
    Texts,
    Verdict,
)
from architectures.pages.markdown import markdown
from architectures.pages.terminal import WIDTH, terminal

TEXTS = Texts("a draft", [("[its own]", "draft")], [MarkedText("p:1", "why", [("so", "target"), ("[it is]", "draft")])])
# a block, as Markdown, and for a terminal
SHOWN = (
    (Sentence("All can pay."), "All can pay.", "All can pay."),
    (Verdict("Faster."), "**Faster.**", "Faster."),
    (Caution("few prompts"), "> **Warning:** few prompts", "WARNING: few prompts"),
    (Absent("Not run."), "Not run.", "Not run."),
    (Facts([("seed", "17"), ("machine", "a")]), "- seed: 17\n- machine: a", "seed     17\nmachine  a"),
    (Items(["one", "two"]), "- one\n- two", "- one\n- two"),
    (Code("a \\\n  b"), "```\na \\\n  b\n```", "  a \\\n    b"),
    (
        Table(("name", "ms"), [("draft|x", 1.5), ("y", 12)]),
        "| name | ms |\n| --- | --- |\n| draft\\|x | 1.5 |\n| y | 12 |",
        "name      ms\ndraft|x  1.5\ny         12",
    ),
    (Table(("a",), [("b",)], "Beside:"), "Beside:\n\n| a |\n| --- |\n| b |", "Beside:\na\nb"),
    (Figure("f", "tau is 2", "tau", lambda axes: None), "tau is 2", "tau is 2"),
    (TEXTS, "a draft\n\n[its own]\n\nso[it is]", "a draft\n\n[its own]\n\nso[it is]"),
    (Folded("More", [Sentence("x")]), "# More\n\nx", "More\n  x"),
    (
        Section("Speed", [Sentence("x"), Section("Batch 2", [Facts([("n", "1")])])]),
        "# Speed\n\nx\n\n## Batch 2\n\n- n: 1",
        "Speed\n  x\n  Batch 2\n    n  1",
    ),
)


@pytest.mark.parametrize(("block", "as_markdown", "for_terminal"), SHOWN)
def test_a_block_has_words_in_every_medium(block, as_markdown, for_terminal):
    assert markdown(block) == as_markdown
    assert terminal(block) == for_terminal


def test_every_kind_is_shown_above():
    assert {type(block) for block, _, _ in SHOWN} == set(get_args(Block))


def test_titles_begin_where_they_are_told_to():
    page = [Sentence("first"), Section("Speed", [Section("Batch 2", [])])]
    assert markdown(*page, level=2) == "first\n\n## Speed\n\n### Batch 2"


def test_sentences_under_a_title_are_broken_and_hang():
    first, *others = terminal(Section("Speed", [Sentence(" ".join(["word-with-hyphens"] * 20))])).splitlines()[1:]
    assert first.startswith("  word")
    assert all(line.startswith("    word") for line in others)
    assert others
    assert max(map(len, (first, *others))) <= WIDTH
    assert not any(line.endswith("-") for line in (first, *others))
