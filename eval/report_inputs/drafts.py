"""The drafts of a report, each under a name of its own, and where a scorecard tells of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eval.acceptance.estimates import Estimate
from eval.records.acceptance import AcceptanceRow
from eval.records.origin import UNDISTILLED, DraftModel
from eval.records.scorecard_speeds import Live, SpeedupRow
from eval.records.steps import DraftSteps
from eval.report_inputs.cards import Card


@dataclass(frozen=True)
class ScoredDraft:
    """One draft of one scorecard.

    Attributes:
        card: The scorecard.
        draft: Its name there.
        label: Its name in the report.
    """

    card: Card
    draft: str
    label: str

    @property
    def is_primary(self) -> bool:
        """Whether its scorecard is about it, and not about another that it is the baseline of."""
        return self.draft == self.card.draft

    @property
    def model(self) -> DraftModel:
        return self.card.record.model(self.draft)

    @property
    def steps(self) -> DraftSteps:
        return self.card.record.latency.of(self.draft)

    @property
    def live(self) -> Live | None:
        """Live decoding with it; None where it was not decoded live."""
        return self.card.record.live if self.is_primary else None

    @property
    def is_undistilled(self) -> bool:
        """Whether it is what its scorecard's draft was before it was distilled."""
        return self.draft == UNDISTILLED and not self.is_primary

    @property
    def main_forecast(self) -> SpeedupRow:
        """Its predicted speed-up at temperature 0, or at the first one scored."""
        return self.forecast(self.card.record.main_forecast.temperature)

    def live_at(self, temperature: float) -> Live | None:
        """Live decoding with it at a temperature; None where it was not decoded live there."""
        lives = self.card.record.lives if self.is_primary else []
        return next((live for live in lives if live.temperature == temperature), None)

    def row(self, temperature: float) -> AcceptanceRow:
        """Its acceptance at a temperature that was scored."""
        return self.card.record.row(self.draft, temperature)

    def forecast(self, temperature: float) -> SpeedupRow:
        """Its predicted speed-up at a temperature that was scored."""
        return self.card.record.speedup_of(self.draft, temperature)


def scored_drafts(cards: Sequence[Card]) -> list[ScoredDraft]:
    """Every draft: of each scorecard the one it is about, then its baselines; no baseline that was there before."""
    scored: list[ScoredDraft] = []
    for card in cards:
        seen = {draft.model.fingerprint for draft in scored}
        primary = ScoredDraft(card, card.draft, label_of(cards, card, card.draft))
        others = [model for model in card.record.drafts if model.draft != card.draft and model.fingerprint not in seen]
        scored += [primary, *(ScoredDraft(card, model.draft, label_of(cards, card, model.draft)) for model in others)]
    return scored


def label_of(cards: Sequence[Card], card: Card, draft: str) -> str:
    """What a draft is called; with several scorecards, the one each is about has its run's name."""
    if len(cards) == 1:
        return draft
    return card.name if draft == card.draft else f"{card.name}: {draft}"


def measured(drafts: Iterable[ScoredDraft]) -> list[ScoredDraft]:
    """Those that were decoded live."""
    return [draft for draft in drafts if draft.live is not None]


def speed_of(draft: ScoredDraft) -> Estimate:
    """The one measured speed of a draft: reading the prompts included, and with its policy if it has one.

    What else is measured of its speed is named for what it leaves out.
    """
    assert draft.live is not None, "it was measured"
    return draft.live.main_speedup


def twins_apart(drafts: Iterable[ScoredDraft]) -> tuple[list[ScoredDraft], list[ScoredDraft]]:
    """The drafts, and what they were before they were distilled."""
    told = list(drafts)
    return [draft for draft in told if not draft.is_undistilled], [draft for draft in told if draft.is_undistilled]


def plotted(drafts: Sequence[ScoredDraft]) -> list[ScoredDraft]:
    """Those that figures show: all of one scorecard, of several the one that each is about."""
    several = len({draft.card.path for draft in drafts}) > 1
    return [draft for draft in drafts if draft.is_primary or not several]


def primaries(drafts: Iterable[ScoredDraft]) -> list[ScoredDraft]:
    """Of every scorecard the draft it is about."""
    return [draft for draft in drafts if draft.is_primary]


def all_temperatures(drafts: Iterable[ScoredDraft]) -> list[float]:
    """Temperatures at which any draft was scored, ascending."""
    return sorted({temperature for draft in drafts for temperature in draft.card.record.temperatures})


def scored_at(drafts: Iterable[ScoredDraft], temperature: float) -> list[ScoredDraft]:
    """The drafts that were scored at a temperature."""
    return [draft for draft in drafts if temperature in draft.card.record.temperatures]
