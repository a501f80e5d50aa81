"""What was found of candidates, as tables and sentences. Pure; no torch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from architectures.pages.blocks import Block, Caution, Section, Sentence, Table
from distill.choose.shapes.candidates import Candidate
from distill.choose.shapes.left_out import LeftOut
from distill.choose.trainings.in_play import is_rival
from distill.choose.trainings.rungs import Cell, Rung
from eval.pages.doubts import chosen_words, doubt_words, is_distrusted
from eval.pages.verdict import figure_words
from eval.records.evidence import StepEvidence
from eval.scorecard_schema import ScoredLatency
from eval.speedup import Prospect, Ranked, step_times

PROSPECT_COLUMNS = (
    "candidate",
    "layers × hidden",
    "parameters",
    "ms a step",
    "cost of a step",
    "most it can gain",
    "α it needs",
)
RANKED_COLUMNS = ("candidate", "lookahead", "predicted speed", "tokens/s", "the fastest in")
LEFT_OUT_COLUMNS = ("candidate", "left out", "why")
CELL_COLUMNS = ("temperature", "batch", "context", "the fastest", "predicted speed", "the fastest in")


def prospects_page(
    candidates: Sequence[Candidate], prospects: Mapping[str, Prospect], timed: Sequence[ScoredLatency]
) -> list[Block]:
    """What each could do at most, by step times alone: at the place that decides, and what a step costs at others."""
    first, *others = timed
    rows = [prospect_cells(each, prospects[each.name], first) for each in candidates]
    where = f"batch {first.batch}, {first.context_tokens:,} tokens of context"
    blocks: list[Block] = [Table(PROSPECT_COLUMNS, rows), Sentence(prospects_verdict(prospects))]
    return [
        Section(f"Step times of untrained drafts: {where}", blocks),
        *([costs_elsewhere(candidates, others)] if others else []),
    ]


def prospect_cells(candidate: Candidate, prospect: Prospect, latency: ScoredLatency) -> tuple[str, ...]:
    return (
        candidate.name,
        f"{candidate.shape.layers} × {candidate.shape.hidden}",
        f"{candidate.shape.parameters() / 1e6:.1f}M",
        f"{latency.of(candidate.name).one_token.median_ms:.2f}",
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
    return f"No acceptance makes these pay here: {', '.join(hopeless)}." if hopeless else "All can pay."


def costs_elsewhere(candidates: Sequence[Candidate], timed: Sequence[ScoredLatency]) -> Section:
    """What a step costs at the other batches and contexts."""
    columns = ("candidate", *(f"batch {each.batch}, context {each.context_tokens:,}" for each in timed))
    ratios = [{name: steps.cost_ratio for name, steps in step_times(latency).items()} for latency in timed]
    rows = [(each.name, *(f"{of_place[each.name]:.3f}" for of_place in ratios)) for each in candidates]
    return Section("Cost of a step elsewhere", [Table(columns, rows)])


def left_out_page(left_out: Sequence[LeftOut], total: int, when: str = "Before any training") -> list[Section]:
    """Who is out, how many of how many, and why; nothing where nobody is."""
    if not left_out:
        return []
    rows = [(each.candidate, each.rule, each.reason) for each in left_out]
    return [Section(f"{when}: {len(left_out)} of {total} shapes left out", [Table(LEFT_OUT_COLUMNS, rows)])]


@dataclass(frozen=True)
class Basis:
    """What acceptance was known from: the title of the ranking, and what its winner is worth."""

    title: str
    pays: str
    undecided: str
    loses: str

    def distrusted(self) -> "Basis":
        """The same where step times are not to be believed: nothing is decided by them."""
        doubt = "Neither that nor whether it pays is decided: step times are not to be believed (see the warnings)."
        return replace(self, pays=doubt, undecided=doubt, loses=doubt)


def after_training(length: str) -> Basis:
    return Basis(
        title=f"Predicted speed after {length} of training",
        pays="It pays already.",
        undecided="Whether it pays already is not decided.",
        loses="After so short a training it does not pay yet; longer training raises what is accepted.",
    )


GIVEN_ALPHAS = Basis(
    title="Predicted speed with the acceptance given, every token independently",
    pays="It pays.",
    undecided="Whether it pays is not decided.",
    loses="With so little accepted it does not pay.",
)


def basis_of(rung: Rung) -> Basis:
    basis = GIVEN_ALPHAS if rung.length is None else after_training(rung.length)
    return basis.distrusted() if is_distrusted(rung.cells[0].evidence) else basis


def steps_blocks(evidence: StepEvidence | None) -> list[Block]:
    """What must be known before step times are believed, and which number of threads was picked."""
    chosen = chosen_words(evidence)
    threads = [] if chosen is None else [Sentence(f"Steps were timed with {chosen}.")]
    return [*map(Caution, doubt_words(evidence)), *threads]


def rung_page(rung: Rung) -> list[Section]:
    """The ranking that decides, who comes first elsewhere, and who is not trained on."""
    first = rung.cells[0]
    basis, table = basis_of(rung), Table(RANKED_COLUMNS, [ranked_cells(each) for each in first.ranked])
    elsewhere: list[Block] = [cells_table(rung.cells), Sentence(cells_verdict(rung.cells))]
    return [
        Section(
            f"{basis.title}, {cell_words(first)}",
            [
                *steps_blocks(first.evidence),
                table,
                Sentence(ranking_verdict(rung.ranked, basis)),
                *(elsewhere if len(rung.cells) > 1 else []),
            ],
        ),
        *left_out_page(rung.left_out, len(rung.ranked), f"Not trained beyond {rung.length}"),
    ]


def cell_words(cell: Cell) -> str:
    temperature = "" if cell.temperature is None else f"temperature {cell.temperature:g}, "
    return f"{temperature}batch {cell.batch}, {cell.context:,} tokens of context"


def ranked_cells(ranked: Ranked) -> tuple[str, ...]:
    return (
        ranked.draft,
        str(ranked.lookahead),
        figure_words(ranked.speedup, ranked.interval, times=True),
        f"{ranked.tokens_per_s:.1f}",
        f"{ranked.first_share:.0%} of draws",
    )


def cells_table(cells: Sequence[Cell]) -> Table:
    """Who comes first where, and what the one that decides is worth there."""
    chosen = cells[0].ranked[0].draft
    return Table((*CELL_COLUMNS, f"{chosen} there"), [winner_cells(cell, chosen) for cell in cells])


def winner_cells(cell: Cell, chosen: str) -> tuple[str, ...]:
    best = cell.ranked[0]
    [own] = [each for each in cell.ranked if each.draft == chosen]
    return (
        "given" if cell.temperature is None else f"{cell.temperature:g}",
        str(cell.batch),
        f"{cell.context:,}",
        best.draft,
        figure_words(best.speedup, best.interval, times=True),
        f"{best.first_share:.0%} of draws",
        f"{own.speedup:.2f}x, first in {own.first_share:.0%}",
    )


def cells_verdict(cells: Sequence[Cell]) -> str:
    """Which decides, and where another comes first."""
    first, *others = cells
    chosen = first.ranked[0].draft
    elsewhere = [f"{cell.ranked[0].draft} at {cell_words(cell)}" for cell in others if cell.ranked[0].draft != chosen]
    told = f"Elsewhere another comes first: {'; '.join(elsewhere)}." if elsewhere else "It comes first everywhere."
    return f"The first row decides. {told}"


def ranking_verdict(ranked: Sequence[Ranked], basis: Basis) -> str:
    """The winner, its rivals, and whether it pays at all."""
    best, *others = ranked
    low, high = best.interval or (0.0, math.inf)
    pays = basis.pays if low > 1 else basis.loses if high < 1 else basis.undecided
    rivals = [each.draft for each in others if best.interval is None or is_rival(each)]
    doubt = f" The fastest may as well be {' or '.join(rivals)}." if rivals else ""
    return f"{best.draft} promises most.{doubt} {pays}"
