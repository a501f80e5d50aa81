"""The law as tables: its numbers, and how it foretells trainings that it was not fitted to. Pure."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from architectures.pages.blocks import Table
from architectures.pages.markdown import between, markdown
from distill.budget.law import LeftOut, fit, left_out
from distill.budget.record import Training, Trainings

BEGIN, END = "<!-- budget law: begin -->", "<!-- budget law: end -->"
NUMBERS = ("level", "growth", "deeper", "depth", "ids", "reuse", "text")


def law_page(found: Trainings) -> str:
    """All of it."""
    columns = ("lookahead", *NUMBERS, "mean miss", "worst miss", "of the best constant's")
    rows = [law_cells(found, lookahead) for lookahead in found.lookaheads]
    return "\n\n".join([machine_sentence(found), markdown(Table(columns, rows)), trainings_table(found)])


def machine_sentence(found: Trainings) -> str:
    """Of what, and on what."""
    return (
        f"{len(fitted_to(found))} trainings on {found.threads} threads of {found.processor}, torch {found.torch}, "
        f"{found.precision}; tau greedily on {found.prompts} held-out prompts. The target writes "
        f"{found.answers_per_s:.0f} answer tokens/s."
    )


def fitted_to(found: Trainings) -> list[Training]:
    """The trainings that were not foretold, which the law is tested with."""
    return [one for one in found.trainings if not one.foretold]


def missed_by(found: Trainings, lookahead: int) -> LeftOut:
    """How each of them is foretold by the others."""
    kept = fitted_to(found)
    return left_out([one.budget for one in kept], [one.taus[lookahead - 1] for one in kept], lookahead)


def law_cells(found: Trainings, lookahead: int) -> list[str]:
    """The law of one lookahead, and how trainings left out one by one are foretold."""
    kept, missed = fitted_to(found), missed_by(found, lookahead)
    law = fit([one.budget for one in kept], [one.taus[lookahead - 1] for one in kept], lookahead)
    numbers = [f"{getattr(law, name):.3f}" for name in NUMBERS]
    figures = f"{fmean(missed.missed):.3f}", f"{missed.worst:.3f}", f"{missed.share_of_constant:.2f}"
    return [str(lookahead), *numbers, *figures]


def trainings_table(found: Trainings) -> str:
    """Every training with what its law says of it without it, or said before it."""
    shown = sorted({found.lookaheads[0], found.lookaheads[-1]})
    missed, kept = {each: missed_by(found, each) for each in shown}, fitted_to(found)
    columns = ("answer tokens", "readings", "text", "layers", "ids", "seconds", "greedy match")
    rows = [
        training_cells(one, {each: said_of(one, kept, missed[each], each) for each in shown}) for one in found.trainings
    ]
    return markdown(Table((*columns, *(f"tau at {each}, and foretold" for each in shown), "made"), rows))


def said_of(one: Training, kept: Sequence[Training], missed: LeftOut, lookahead: int) -> float:
    """The tau that is foretold of a training: before it was made, or by all others."""
    return one.foretold[lookahead - 1] if one.foretold else missed.predicted[kept.index(one)]


def training_cells(one: Training, said: Mapping[int, float]) -> list[str]:
    """One row; `said` is the tau foretold, by lookahead."""
    budget = one.budget
    return [
        f"{budget.answer_tokens:,.0f}",
        f"{budget.epochs:g}",
        f"{budget.text_tokens:,.0f}",
        str(budget.layers),
        f"{budget.ids:,}",
        f"{one.answers_s + one.text_s:.0f}" if one.answers_s else "not timed",
        f"{one.greedy_match:.3f}",
        *(f"{one.taus[each - 1]:.3f}, {tau:.3f}" for each, tau in said.items()),
        "after it was foretold" if one.foretold else "before the law",
    ]


def with_law(page: str, found: Trainings) -> str:
    """The page with the law between its two marks."""
    return between(page, BEGIN, END, law_page(found))
