"""Every kind of block as HTML; whatever its texts hold, they stay words."""

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
from eval.pages.drawing import Drawing
from eval.report.page import templates

HOSTILE = "<b>x()</b>"
BLOCKS = (
    Sentence(HOSTILE),
    Verdict(HOSTILE),
    Caution(HOSTILE),
    Absent(HOSTILE),
    Facts([(HOSTILE, HOSTILE)]),
    Items([HOSTILE]),
    Code(HOSTILE),
    Table((HOSTILE,), [(HOSTILE,)], HOSTILE),
    Figure("f", HOSTILE, HOSTILE, lambda axes: None),
    Texts(HOSTILE, [(HOSTILE, "draft")], [MarkedText(HOSTILE, HOSTILE, [(HOSTILE, "draft")])]),
    Folded(HOSTILE, [Sentence(HOSTILE)]),
    Section(HOSTILE, [Section(HOSTILE, [Sentence(HOSTILE)])], name="here"),
)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: type(block).__name__)
def test_a_block_is_shown_and_its_texts_stay_words(block):
    context = {"drawings": {"f": Drawing("0 0 1 1", "", b"")}}
    shown = str(templates().get_template("blocks.html.jinja").make_module(context).show(block, 2))
    assert "&lt;b&gt;x()" in shown
    assert "<b>" not in shown


def test_every_kind_is_among_them():
    assert {type(block) for block in BLOCKS} == set(get_args(Block))


def test_sections_within_sections_have_lower_headings():
    shown = str(templates().get_template("blocks.html.jinja").module.show(BLOCKS[-1], 2))
    assert shown.index('<section id="here">') < shown.index("<h2>") < shown.index("<section>") < shown.index("<h3>")
