"""What was found of candidates, as tables and sentences. Pure; no torch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from architectures.pages.blocks import Section, Sentence, Table
from distill.choose.shapes.candidates import Candidate
from eval.pages.verdict import figure_words
from eval.predictions.ranking import Prospect, Ranked

PROSPECT_COLUMNS = ("candidate", "layers × hidden", "parameters", "cost of a step", "most it can gain", "α it needs")
RIVAL_SHARE = 0.025  # of the draws that name a rival: one of two equal drafts wins fewer in 5 % of runs
RANKED_COLUMNS = ("candidate", "lookahead", "predicted speed", "tokens/s", "the fastest in")


def prospects_page(candidates: Sequence[Candidate], prospects: Mapping[str, Prospect]) -> Section:
    """What each could do at most, by step times alone."""
    rows = [prospect_cells(candidate, prospects[candidate.name]) for candidate in candidates]
    blocks = [Table(PROSPECT_COLUMNS, rows), Sentence(prospects_verdict(prospects))]
    return Section("Step times of untrained drafts", blocks)


def prospect_cells(candidate: Candidate, prospect: Prospect) -> tuple[str, ...]:
    return (
        candidate.name,
        f"{candidate.shape.layers} × {candidate.shape.hidden}",
        f"{candidate.shape.parameters() / 1e6:.1f}M",
        f"{prospect.cost_ratio:.3f} of the target's",
        f"{prospect.most:.2f}x",
        "none suffices"
        if prospect.least_alpha is None
        else f"{prospect.least_alpha:.2f} at lookahead {prospect.lookahead}",
    )


def prospects_verdict(prospects: Mapping[str, Prospect]) -> str:
    hopeless = [name for name, prospect in prospects.items() if prospect.least_alpha is None]
    if len(hopeless) == len(prospects):
        return (
            "No draft of these shapes can pay on this machine, whatever it learns: even if every token were kept, "
            "drafting and verification would take longer than the target alone."
        )
    return f"Left out, for no acceptance makes them pay here: {', '.join(hopeless)}." if hopeless else "All can pay."


@dataclass(frozen=True)
class Basis:
    """What acceptance was known from: the title of the ranking, and what its winner is worth."""

    title: str
    pays: str
    undecided: str
    loses: str


def after_training(duration: str, temperature: float) -> Basis:
    return Basis(
        title=f"Predicted speed after {duration} of training, temperature {temperature:g}, batch 1",
        pays="It pays already.",
        undecided="Whether it pays already is not decided.",
        loses="After so short a training it does not pay yet; longer training raises what is accepted.",
    )


GIVEN_ALPHAS = Basis(
    title="Predicted speed with the acceptance given, every token independently, batch 1",
    pays="It pays.",
    undecided="Whether it pays is not decided.",
    loses="With so little accepted it does not pay.",
)


def ranking_page(ranked: Sequence[Ranked], basis: Basis) -> Section:
    """The candidates, the fastest first, and how sure that is."""
    rows = [ranked_cells(each) for each in ranked]
    return Section(basis.title, [Table(RANKED_COLUMNS, rows), Sentence(ranking_verdict(ranked, basis))])


def ranked_cells(ranked: Ranked) -> tuple[str, ...]:
    return (
        ranked.draft,
        str(ranked.lookahead),
        figure_words(ranked.speedup, ranked.interval, times=True),
        f"{ranked.tokens_per_s:.1f}",
        f"{ranked.first_share:.0%} of draws",
    )


def ranking_verdict(ranked: Sequence[Ranked], basis: Basis) -> str:
    """The winner, its rivals, and whether it pays at all."""
    best, *others = ranked
    low, high = best.interval or (0.0, math.inf)
    pays = basis.pays if low > 1 else basis.loses if high < 1 else basis.undecided
    rivals = [each.draft for each in others if best.interval is None or each.first_share >= RIVAL_SHARE]
    doubt = f" The fastest may as well be {' or '.join(rivals)}." if rivals else ""
    return f"{best.draft} promises most.{doubt} {pays}"
