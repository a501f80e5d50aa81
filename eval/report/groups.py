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
    rows, coverages = [], []
    for temperature in all_temperatures(drafts):
        for draft in scored_at(drafts, temperature):
            sums = draft.row(temperature).by_prompt
            if sums is None:
                return Absent(
                    f"By task: {draft.card.path} does not hold the sums of every prompt. Score again with this version."
                )
            rows += task_rows(draft, sums, temperature)
            coverages += task_coverages(draft, sums)
    return by_draft(with_coverage(Table(("draft", "task", *COLUMNS), rows, "By task"), coverages))


def task_rows(draft: ScoredDraft, sums: PromptSums, temperature: float) -> list[tuple[str, ...]]:
    """Figures of every task, in the order of their first prompts."""
    lookahead = draft.forecast(temperature).best_lookahead
    return [
        (draft.label, task, f"{temperature:g}", *sums_cells(sums, lookahead, prompts, draft.card.resampling))
        for task, prompts in prompts_by_task(draft).items()
    ]


def prompts_by_task(draft: ScoredDraft) -> dict[str, list[int]]:
    """Where the prompts of every task stand among all."""
    prompts: dict[str, list[int]] = {}
    for number, source in enumerate(draft.card.record.prompts.sources):
        prompts.setdefault(source.rpartition(":")[0] or source, []).append(number)
    return prompts


def task_coverages(draft: ScoredDraft, sums: PromptSums) -> list[Estimate | None]:
    """Of every task; None of a draft with a whole head."""
    return [
        None
        if sums.sayable is None
        else pooled_ratio(
            [sums.sayable[prompt] for prompt in prompts],
            [sums.tokens[prompt] for prompt in prompts],
            draft.card.resampling,
        )
        for prompts in prompts_by_task(draft).values()
    ]


def sums_cells(sums: PromptSums, lookahead: int, prompts: Sequence[int], resampling: Resampling) -> tuple[str, ...]:
    """Figures of the prompts of some indices, with intervals over them."""
    tokens, alpha, rounds = (
        [column[prompt] for prompt in prompts] for column in (sums.tokens, sums.alpha, sums.rounds_at(lookahead))
    )
    return (
        str(len(prompts)),
        f"{sum(tokens):g}",
        with_interval(pooled_ratio(alpha, tokens, resampling)),
        with_interval(pooled_ratio(tokens, rounds, resampling)),
        str(lookahead),
    )


def categories_block(drafts: Sequence[ScoredDraft]) -> Block:
    """Acceptance by category, as the scorecards hold it."""
    rows, coverages = [], []
    for temperature in all_temperatures(drafts):
        for draft in scored_at(drafts, temperature):
            rows += category_rows(draft, temperature)
            coverages += [group.coverage for group in categories_of(draft, temperature)]
    if not rows:
        return Absent(
            "By category: the prompts have one category, or none. Rows of a prompt file may have a `category`."
        )
    table = Table(("draft", "category", *COLUMNS), rows, "By category, rounds that start in it")
    return by_draft(with_coverage(table, coverages))


def category_rows(draft: ScoredDraft, temperature: float) -> list[tuple[str, ...]]:
    lookahead = draft.forecast(temperature).best_lookahead
    rows = []
    for group in categories_of(draft, temperature):
        counts = (str(group.prompts), f"{group.alpha.tokens:g}")
        figures = (with_interval(group.alpha), with_interval(group.at(lookahead).tau))
        rows.append((draft.label, group.bin, f"{temperature:g}", *counts, *figures, str(lookahead)))
    return rows


def categories_of(draft: ScoredDraft, temperature: float) -> list[Bin]:
    """Every category as the scorecard holds it."""
    return draft.row(temperature).bins_by("category")
