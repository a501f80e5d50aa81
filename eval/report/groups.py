"""Acceptance by task and by category of the prompts."""

from collections.abc import Sequence

from architectures.pages.blocks import Absent, Block, Section, Table
from eval.acceptance.estimates import Estimate, Resampling, pooled_ratio
from eval.pages.tables import by_draft, with_coverage
from eval.pages.verdict import with_interval
from eval.records.acceptance import Bin, PromptSums
from eval.report_inputs.drafts import ScoredDraft, all_temperatures, primaries, scored_at

COLUMNS = ("temperature", "prompts", "tokens", "α", "τ", "at lookahead")


def groups_section(drafts: Sequence[ScoredDraft]) -> Section:
    """A table by task and one by category, for the draft of every scorecard."""
    shown = primaries(drafts)
    return Section("Tasks and categories", [tasks_block(shown), categories_block(shown)], name="groups")


def tasks_block(drafts: Sequence[ScoredDraft]) -> Block:
    """Acceptance by task, a task being the file or data set that a prompt is from."""
    rows, found = [], []
    for temperature in all_temperatures(drafts):
        for one in scored_at(drafts, temperature):
            sums = one.row(temperature).by_prompt
            if sums is None:
                return Absent(
                    f"By task: {one.card.path} does not hold the sums of every prompt. Score again with this version."
                )
            rows += task_rows(one, sums, temperature)
            found += task_coverages(one, sums)
    return by_draft(with_coverage(Table(("draft", "task", *COLUMNS), rows, "By task"), found))


def task_rows(one: ScoredDraft, sums: PromptSums, temperature: float) -> list[tuple[str, ...]]:
    """Figures of every task, in the order of their first prompts."""
    lookahead = one.forecast(temperature).best_lookahead
    return [
        (one.label, task, f"{temperature:g}", *sums_cells(sums, lookahead, found, one.card.resampling))
        for task, found in places_by_task(one).items()
    ]


def places_by_task(one: ScoredDraft) -> dict[str, list[int]]:
    """Where the prompts of every task stand among all."""
    places: dict[str, list[int]] = {}
    for place, source in enumerate(one.card.record.prompts.sources):
        places.setdefault(source.rpartition(":")[0] or source, []).append(place)
    return places


def task_coverages(one: ScoredDraft, sums: PromptSums) -> list[Estimate | None]:
    """Of every task; None of a draft that says every id."""
    return [
        None
        if sums.sayable is None
        else pooled_ratio(
            [sums.sayable[place] for place in places], [sums.tokens[place] for place in places], one.card.resampling
        )
        for places in places_by_task(one).values()
    ]


def sums_cells(sums: PromptSums, lookahead: int, places: Sequence[int], resampling: Resampling) -> tuple[str, ...]:
    """Figures of the prompts at some places, with intervals over them."""
    tokens, alpha, rounds = (
        [column[place] for place in places] for column in (sums.tokens, sums.alpha, sums.rounds_at(lookahead))
    )
    return (
        str(len(places)),
        f"{sum(tokens):g}",
        with_interval(pooled_ratio(alpha, tokens, resampling)),
        with_interval(pooled_ratio(tokens, rounds, resampling)),
        str(lookahead),
    )


def categories_block(drafts: Sequence[ScoredDraft]) -> Block:
    """Acceptance by category, as the scorecards hold it."""
    rows, found = [], []
    for temperature in all_temperatures(drafts):
        for one in scored_at(drafts, temperature):
            rows += category_rows(one, temperature)
            found += [group.coverage for group in categories_of(one, temperature)]
    if not rows:
        return Absent(
            "By category: the prompts have one category, or none. Rows of a prompt file may have a `category`."
        )
    table = Table(("draft", "category", *COLUMNS), rows, "By category, rounds that start in it")
    return by_draft(with_coverage(table, found))


def category_rows(one: ScoredDraft, temperature: float) -> list[tuple[str, ...]]:
    lookahead = one.forecast(temperature).best_lookahead
    found = []
    for group in categories_of(one, temperature):
        counts = (str(group.prompts), f"{group.alpha.tokens:g}")
        figures = (with_interval(group.alpha), with_interval(group.at(lookahead).tau))
        found.append((one.label, group.bin, f"{temperature:g}", *counts, *figures, str(lookahead)))
    return found


def categories_of(one: ScoredDraft, temperature: float) -> list[Bin]:
    """Every category as the scorecard holds it."""
    return one.row(temperature).bins_by("category")
