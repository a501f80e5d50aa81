"""The law as tables: its numbers, and how it foretells trainings that it was not fitted to. Pure."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from architectures.pages.blocks import Table
from architectures.pages.markdown import between, markdown
from distill.budget.law import LeftOut, fit, left_out
from distill.budget.record import Training, Trainings

BEGIN, END = "<!-- budget law: begin -->", "<!-- budget law: end -->"
NUMBERS = ("level", "growth", "deeper", "depth", "ids", "reuse", "text")


def law_page(record: Trainings) -> str:
    columns = ("lookahead", *NUMBERS, "mean miss", "worst miss", "of the best constant's")
    rows = [law_cells(record, lookahead) for lookahead in record.lookaheads]
    return "\n\n".join([machine_sentence(record), markdown(Table(columns, rows)), trainings_table(record)])


def machine_sentence(record: Trainings) -> str:
    return (
        f"{len(fitted_to(record))} trainings on {record.threads} threads of {record.processor}, torch {record.torch}, "
        f"{record.precision}; tau greedily on {record.prompts} held-out prompts. The target writes "
        f"{record.answers_per_s:.0f} answer tokens/s."
    )


def fitted_to(record: Trainings) -> list[Training]:
    """The trainings that were not foretold, which the law is tested with."""
    return [training for training in record.trainings if not training.foretold]


def missed_by(record: Trainings, lookahead: int) -> LeftOut:
    """How each of them is foretold by the others."""
    kept = fitted_to(record)
    return left_out(
        [training.budget for training in kept], [training.taus[lookahead - 1] for training in kept], lookahead
    )


def law_cells(record: Trainings, lookahead: int) -> list[str]:
    """The law of one lookahead, and how trainings left out one by one are foretold."""
    kept, missed = fitted_to(record), missed_by(record, lookahead)
    law = fit([training.budget for training in kept], [training.taus[lookahead - 1] for training in kept], lookahead)
    numbers = [f"{getattr(law, name):.3f}" for name in NUMBERS]
    figures = f"{fmean(missed.missed):.3f}", f"{missed.worst:.3f}", f"{missed.share_of_constant:.2f}"
    return [str(lookahead), *numbers, *figures]


def trainings_table(record: Trainings) -> str:
    """Every training with what its law says of it without it, or said before it."""
    shown = sorted({record.lookaheads[0], record.lookaheads[-1]})
    missed, kept = {each: missed_by(record, each) for each in shown}, fitted_to(record)
    columns = ("answer tokens", "readings", "text", "layers", "ids", "seconds", "greedy match")
    rows = [
        training_cells(training, {each: foretold_tau(training, kept, missed[each], each) for each in shown})
        for training in record.trainings
    ]
    return markdown(Table((*columns, *(f"tau at {each}, and foretold" for each in shown), "made"), rows))


def foretold_tau(training: Training, kept: Sequence[Training], missed: LeftOut, lookahead: int) -> float:
    """The tau that is foretold of a training: before it was made, or by all others."""
    return training.foretold[lookahead - 1] if training.foretold else missed.predicted[kept.index(training)]


def training_cells(training: Training, foretold: Mapping[int, float]) -> list[str]:
    """One row; `foretold` is the tau of the law, by lookahead."""
    budget = training.budget
    return [
        f"{budget.answer_tokens:,.0f}",
        f"{budget.epochs:g}",
        f"{budget.text_tokens:,.0f}",
        str(budget.layers),
        f"{budget.ids:,}",
        f"{training.answers_s + training.text_s:.0f}" if training.answers_s else "not timed",
        f"{training.greedy_match:.3f}",
        *(f"{training.taus[each - 1]:.3f}, {tau:.3f}" for each, tau in foretold.items()),
        "after it was foretold" if training.foretold else "before the law",
    ]


def with_law(page: str, record: Trainings) -> str:
    """The page with the law between its two marks."""
    return between(page, BEGIN, END, law_page(record))
