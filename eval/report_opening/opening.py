"""All of a report's first screen."""

from collections.abc import Sequence
from dataclasses import dataclass

from architectures.pages.blocks import MARKS, Figure, Judgement
from eval.report_inputs.cards import Card
from eval.report_inputs.drafts import ScoredDraft, primaries
from eval.report_opening.conditions import report_warnings
from eval.report_opening.next_step import next_step
from eval.report_opening.picture import speeds_figure
from eval.report_opening.sentence import how_sentences, opening_judgement, opening_sentence


@dataclass(frozen=True)
class Opening:
    """What stands above all sections.

    Attributes:
        about: Whose report it is.
        judgement: Of the draft, or of the one that came out fastest.
        sentence: The verdict and the number.
        picture: The speed of every draft.
        next_step: What to do.
        how: Of what the sentence is true.
        warnings: What must be known before any of it is believed.
    """

    about: str
    judgement: Judgement
    sentence: str
    picture: Figure
    next_step: str
    how: Sequence[str]
    warnings: Sequence[str]

    @property
    def mark(self) -> str:
        return MARKS[self.judgement]


def opening_of(drafts: Sequence[ScoredDraft], cards: Sequence[Card], *, batches: str) -> Opening:
    """The first screen of a report.

    Args:
        drafts: All of them, baselines too.
        cards: They are from.
        batches: At which batches the best is predicted to pay; empty where no steps are known.
    """
    return Opening(
        about=about_words(drafts, cards),
        judgement=opening_judgement(drafts),
        sentence=opening_sentence(drafts),
        picture=speeds_figure(drafts),
        next_step=next_step(drafts),
        how=how_sentences(drafts, batches=batches),
        warnings=report_warnings(cards),
    )


def about_words(drafts: Sequence[ScoredDraft], cards: Sequence[Card]) -> str:
    """Target and drafts."""
    named = primaries(drafts)
    those = f"draft {cards[0].name}" if len(named) == 1 else f"{len(named)} drafts"
    return f"Target {cards[0].record.target.path}, {those}"
