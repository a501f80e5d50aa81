"""Texts that were decoded with the draft, each token told apart by who wrote it: by a mark, and by a colour."""

from collections.abc import Sequence
from itertools import groupby
from typing import get_args

from architectures.pages.blocks import Absent, Block, MarkedText, Section, Sentence, Texts
from eval.report_inputs.drafts import ScoredDraft, primaries
from eval.rounds.examples import Example
from eval.rounds.race import Writer

MARKS: dict[Writer, tuple[str, str]] = {
    "accepted": ("", ""),
    "corrected": ("[", "]"),
    "bonus": ("{", "}"),
    "target": ("«", "»"),
}
LEGEND: dict[Writer, str] = {
    "accepted": "the draft's, accepted",
    "corrected": "the target's correction",
    "bonus": "the target's bonus",
    "target": "the target's end of the text",
}
assert set(MARKS) == set(LEGEND) == set(get_args(Writer))


def texts_section(drafts: Sequence[ScoredDraft]) -> Section:
    """A few texts of every draft that was decoded live."""
    blocks: list[Block] = [
        Sentence(
            "Every token is the target's choice, whoever wrote it. A bonus follows when all that was proposed "
            "was kept, or when nothing was. Tokens that follow each other from one writer share their marks."
        )
    ]
    blocks += [texts_block(draft) for draft in primaries(drafts)]
    return Section("Who wrote which token", blocks, name="texts")


def texts_block(draft: ScoredDraft) -> Block:
    """The texts of one draft, or why there are none."""
    if draft.live is None:
        return Absent(f"Texts of {draft.label}: temperature 0 was not scored, so nothing was decoded live.")
    if draft.card.examples is None:
        return Absent(
            f"Texts of {draft.label}: no examples.json beside {draft.card.path}. Score again with this version."
        )
    caption = f"{draft.label}, temperature {draft.live.temperature:g}, lookahead {draft.live.lookahead}"
    legend = [(words.join(MARKS[writer]), writer) for writer, words in LEGEND.items()]
    return Texts(caption, legend, list(map(marked_text, draft.card.examples)))


def marked_text(example: Example) -> MarkedText:
    """An example in pieces as long as one writer wrote."""
    grouped = groupby(example.pieces, key=writer_of)
    pieces = [("".join(text for text, _ in group).join(MARKS[writer]), writer) for writer, group in grouped]
    category = "" if example.category is None else f", {example.category}"
    return MarkedText(f"{example.source}{category}", example.prompt, pieces)


def writer_of(piece: tuple[str, Writer]) -> Writer:
    return piece[1]
