"""Acceptance by task and by category of the prompts."""

from collections.abc import Sequence
from typing import Any

from eval.acceptance.estimates import Resampling, pooled_ratio
from eval.pages.blocks import Absent, Block, Section, table_by_draft
from eval.pages.tables import with_coverage
from eval.pages.verdict import with_interval
from eval.report.differences import rounds_of
from eval.report_inputs.drafts import ScoredDraft, all_temperatures, primaries, scored_at
from eval.scorecard.acceptance_record import estimate_record

Record = dict[str, Any]

COLUMNS = ("temperature", "prompts", "tokens", "α", "τ", "at lookahead")


def groups_section(drafts: Sequence[ScoredDraft]) -> Section:
    """A table by task and one by category, for the draft of every scorecard."""
    shown = primaries(drafts)
    return Section("groups", "Tasks and categories", [tasks_block(shown), categories_block(shown)])


def tasks_block(drafts: Sequence[ScoredDraft]) -> Block:
    """Acceptance by task, a task being the file or data set that a prompt is from."""
    without = [one for one in drafts if by_prompt_of(one) is None]
    if without:
        return Absent(
            f"By task: {without[0].card.path} does not hold the sums of every prompt. Score again with this version."
        )
    rows, found = [], []
    for temperature in all_temperatures(drafts):
        for one in scored_at(drafts, temperature):
            rows += task_rows(one, temperature)
            found += task_coverages(one, temperature)
    return table_by_draft("By task", *with_coverage(("task", *COLUMNS), rows, found))


def by_prompt_of(one: ScoredDraft) -> Record | None:
    """Sums of every prompt, if the scorecard has them."""
    return one.card.record["acceptance"][0].get("by_prompt")


def task_rows(one: ScoredDraft, temperature: float) -> list[tuple[str, ...]]:
    """Figures of every task, in the order of their first prompts."""
    sums, lookahead = one.row(temperature)["by_prompt"], one.forecast(temperature)["best_lookahead"]
    return [
        (one.label, task, f"{temperature:g}", *sums_cells(sums, lookahead, found, one.card.resampling))
        for task, found in places_by_task(one).items()
    ]


def places_by_task(one: ScoredDraft) -> dict[str, list[int]]:
    """Where the prompts of every task stand among all."""
    places: dict[str, list[int]] = {}
    for place, source in enumerate(one.card.record["prompts"]["sources"]):
        places.setdefault(source.rpartition(":")[0] or source, []).append(place)
    return places


def task_coverages(one: ScoredDraft, temperature: float) -> list[Record]:
    """A record for every task, with the coverage of a draft that says some ids alone, as `with_coverage` takes it."""
    sums = one.row(temperature)["by_prompt"]
    if sums.get("sayable") is None:
        return [{} for _ in places_by_task(one)]
    columns = [
        ([sums["sayable"][place] for place in found], [sums["tokens"][place] for place in found])
        for found in places_by_task(one).values()
    ]
    return [{"coverage": estimate_record(pooled_ratio(*each, one.card.resampling))} for each in columns]


def sums_cells(sums: Record, lookahead: int, places: Sequence[int], resampling: Resampling) -> tuple[str, ...]:
    """Figures of the prompts at some places, with intervals over them."""
    tokens, alpha, rounds = (
        [column[place] for place in places] for column in (sums["tokens"], sums["alpha"], rounds_of(sums, lookahead))
    )
    return (
        str(len(places)),
        f"{sum(tokens):g}",
        with_interval(estimate_record(pooled_ratio(alpha, tokens, resampling))),
        with_interval(estimate_record(pooled_ratio(tokens, rounds, resampling))),
        str(lookahead),
    )


def categories_block(drafts: Sequence[ScoredDraft]) -> Block:
    """Acceptance by category, as the scorecards hold it."""
    rows, found = [], []
    for temperature in all_temperatures(drafts):
        for one in scored_at(drafts, temperature):
            rows += category_rows(one, temperature)
            found += categories_of(one, temperature)
    if not rows:
        return Absent(
            "By category: the prompts have one category, or none. Rows of a prompt file may have a `category`."
        )
    return table_by_draft("By category, rounds that start in it", *with_coverage(("category", *COLUMNS), rows, found))


def category_rows(one: ScoredDraft, temperature: float) -> list[tuple[str, ...]]:
    lookahead = one.forecast(temperature)["best_lookahead"]
    found = []
    for group in categories_of(one, temperature):
        [entry] = [entry for entry in group["lookahead"] if entry["lookahead"] == lookahead]
        counts = (str(group["prompts"]), f"{group['alpha']['tokens']:g}")
        figures = (with_interval(group["alpha"]), with_interval(entry["tau"]))
        found.append((one.label, group["bin"], f"{temperature:g}", *counts, *figures, str(lookahead)))
    return found


def categories_of(one: ScoredDraft, temperature: float) -> list[Record]:
    """Every category as the scorecard holds it."""
    return [group for part in one.row(temperature)["bins"] if part["by"] == "category" for group in part["bins"]]
