"""What a budget buys, as tables and sentences. Pure."""

from collections.abc import Sequence
from statistics import fmean

from architectures.pages.blocks import Section, Sentence, Table
from architectures.pages.counts import number_of
from distill.budget.law import left_out
from distill.budget.mixes import Mix
from distill.choose.foretold.weighed import Basis, Weighed

COLUMNS = ("candidate", "cost of a step", "α it needs", "answer tokens to break even", "readings", "text", "minutes")
BEYOND = "*"


def budget_page(basis: Basis, weighed: Sequence[Weighed], doubled: Sequence[tuple[str, Mix]]) -> list[Section]:
    """What every candidate needs to pay, what the recipe makes of it, and what twice of something would."""
    order = sorted(weighed, key=lambda each: float("inf") if each.break_even is None else each.break_even.seconds)
    rows = [break_even_cells(each, basis) for each in order]
    beyond = [Sentence(beyond_sentence(basis))] if any(BEYOND in cell for row in rows for cell in row) else []
    needed = [Sentence(law_sentence(basis)), Table(COLUMNS, rows), *beyond]
    sections = [Section("What makes a draft pay here, greedily, at batch 1", needed)]
    if any(each.own for each in weighed):
        sections.append(Section("What the recipe's own answers and readings make of them", [own_table(weighed)]))
    if doubled:
        sections.append(Section("What doubling buys", [doubled_table(doubled)]))
    return sections


def law_sentence(basis: Basis) -> str:
    """What is foretold from what, and how well."""
    record, laws = basis.record, basis.laws
    missed = [left_out(record.budgets, record.taus(each), each) for each in record.lookaheads]
    return (
        f"By the law of {len(record.trainings)} trainings in {basis.path}: at most {laws.most_tokens:,.0f} answer "
        f"tokens, {laws.most_epochs:g} readings, {laws.most_text:,.0f} tokens of text. Foretold from the others, a "
        f"training's tokens per round are missed by {max(fmean(each.missed) for each in missed):.3f} in the mean and "
        f"by {max(each.worst for each in missed):.3f} at most, at the worst lookahead. Steps were timed now; minutes "
        f"are of writing and learning answers on {record.processor}, {number_of(record.threads, 'thread')}."
    )


def break_even_cells(weighed: Weighed, basis: Basis) -> tuple[str, ...]:
    needed = weighed.prospect.least_alpha
    first = (
        weighed.candidate.name,
        f"{weighed.prospect.cost_ratio:.3f} of the target's",
        "none suffices" if needed is None else f"{needed:.2f} at lookahead {weighed.prospect.lookahead}",
    )
    mix = weighed.break_even
    if mix is None:
        return (*first, "never", "", "", "")
    mark = BEYOND if mix.budget.answer_tokens > basis.laws.most_tokens else ""
    return (
        *first,
        f"{mix.budget.answer_tokens:,.0f}{mark}",
        f"{mix.budget.epochs:g}",
        f"{mix.budget.text_tokens:,.0f}",
        f"{mix.seconds / 60:.1f}",
    )


def beyond_sentence(basis: Basis) -> str:
    return f"{BEYOND} beyond the {basis.laws.most_tokens:,.0f} answer tokens of any training: the law is drawn on."


def own_table(weighed: Sequence[Weighed]) -> Table:
    """Every candidate with the recipe's own budget, the fastest first."""
    known = [(each.candidate.name, each.own) for each in weighed if each.own is not None]
    rows = [(name, *mix_cells(mix)) for name, mix in sorted(known, key=lambda each: -each[1].speedup)]
    return Table(("candidate", *MIX_COLUMNS), rows)


MIX_COLUMNS = ("answer tokens", "readings", "tau", "predicted speed", "minutes")


def mix_cells(mix: Mix) -> tuple[str, ...]:
    """A mix and what it is worth."""
    return (
        f"{mix.budget.answer_tokens:,.0f}",
        f"{mix.budget.epochs:g}",
        f"{mix.tau:.2f} at lookahead {mix.lookahead}",
        f"{mix.speedup:.2f}x",
        f"{mix.seconds / 60:.1f}",
    )


def doubled_table(doubled: Sequence[tuple[str, Mix]]) -> Table:
    """The recipe's own shape, as it is and with twice of something."""
    return Table(("", *MIX_COLUMNS), [(name, *mix_cells(mix)) for name, mix in doubled])


def within_sentence(name: str, mix: Mix, minutes: float) -> str:
    """The best of so many minutes."""
    text = f"{mix.budget.text_tokens:,.0f} tokens of text, then " if mix.budget.text_tokens else ""
    return (
        f"In {minutes:g} minutes: {name}, {text}{mix.budget.answer_tokens:,.0f} answer tokens read "
        f"{mix.budget.epochs:g} times: {mix.speedup:.2f}x, tau {mix.tau:.2f} at lookahead {mix.lookahead}."
    )
