"""The figures of a card, out of a scorecard: speeds in the same turns, tau by task and lookahead, step times."""

from collections.abc import Iterator

from eval.acceptance.estimates import pooled_ratio
from eval.pages.scorecard_page import step_words
from eval.pages.verdict import way_words, with_interval
from eval.report.groups import prompts_by_task
from eval.report_inputs.drafts import ScoredDraft

Row = tuple[str, ...]

MOST_LOOKAHEADS = 6  # columns of the table
TAU_COLUMNS = ("prompts", "temperature", "rule", "counted", "alpha")


def speed_rows(draft: ScoredDraft) -> list[Row]:
    """Every way of live decoding: tokens a round, and how many times as fast as the target alone."""
    live = draft.live
    if live is None:
        return []
    loop = live.agreement.loop
    alone = 1 + loop.accepted / loop.rounds
    rows = [(f"the draft, lookahead {live.lookahead}", alone, live.speedup, live.decoding_speedup)]
    rows += [(way_words(row), row.tau, row.speedup, row.decoding_speedup) for row in live.ways]
    return [
        (name, f"{tau:.2f}", with_interval(whole, times=True), with_interval(decoding, times=True))
        for name, tau, whole, decoding in rows
    ]


def speed_notes(draft: ScoredDraft) -> list[str]:
    """What the draft adds to n-gram lookup, which needs no draft."""
    if draft.live is None or not draft.live.over_lookup:
        return []
    told = ", ".join(f"{row.way} {with_interval(row.speedup, times=True)}" for row in draft.live.over_lookup)
    return [f"Over n-gram lookup alone, {draft.live.prompts} prompts: {told}."]


def shown_lookaheads(draft: ScoredDraft) -> list[int]:
    """The first lookaheads that were scored, and those that promise most."""
    temperatures = draft.card.record.temperatures
    scored = draft.row(temperatures[0]).lookaheads
    best = [draft.forecast(temperature).best_lookahead for temperature in temperatures]
    return sorted({*scored[:MOST_LOOKAHEADS], *best})


def tau_columns(draft: ScoredDraft) -> Row:
    return (*TAU_COLUMNS, *(f"tau at {lookahead}" for lookahead in shown_lookaheads(draft)))


def tau_rows(draft: ScoredDraft) -> list[Row]:
    """Tau of every task and of all prompts at every temperature, under every rule where nothing is parted by task."""
    return [
        row
        for temperature in draft.card.record.temperatures
        for row in (*task_rows(draft, temperature), *rule_rows(draft, temperature))
    ]


def task_rows(draft: ScoredDraft, temperature: float) -> Iterator[Row]:
    """A row for each source of prompts, where there are several and the scorecard has their sums."""
    row = draft.row(temperature)
    sums, sources = row.by_prompt, prompts_by_task(draft)
    if sums is None or len(sources) < 2:
        return
    for source, indices in sources.items():
        tokens, alphas = ([column[index] for index in indices] for column in (sums.tokens, sums.alpha))
        taus = [
            ratio_words(tokens, [sums.rounds_at(lookahead)[index] for index in indices], draft)
            for lookahead in shown_lookaheads(draft)
        ]
        counted = f"{len(indices)} prompts, {sum(tokens):g} tokens"
        name = source.rpartition("/")[2]
        yield name, f"{temperature:g}", row.rule, counted, ratio_words(alphas, tokens, draft), *taus


def ratio_words(sums: list[float], counts: list[float], draft: ScoredDraft) -> str:
    """A ratio of sums over prompts with its interval."""
    return with_interval(pooled_ratio(sums, counts, draft.card.resampling))


def rule_rows(draft: ScoredDraft, temperature: float) -> Iterator[Row]:
    """All prompts together, under each rule that engines go by."""
    row = draft.row(temperature)
    counted = f"{row.prompts} prompts, {row.alpha.tokens:g} tokens"
    for rule in (row, *row.other_rules):
        taus = {entry.lookahead: with_interval(entry.tau) for entry in rule.lookahead}
        shown = [taus[lookahead] for lookahead in shown_lookaheads(draft)]
        yield "all", f"{temperature:g}", rule.rule, counted, with_interval(rule.alpha), *shown


def step_rows(draft: ScoredDraft) -> list[Row]:
    """Times of the steps that a round is made of."""
    latency = draft.card.record.latency
    verify = [(f"target, {row.lookahead + 1} tokens (verify)", row) for row in latency.verify]
    shown = [pair for pair in verify if pair[1].lookahead in shown_lookaheads(draft)]
    steps = [("draft, 1 token", draft.steps.one_token), ("target, 1 token", latency.target), *shown]
    return [(name, step_words(step)) for name, step in steps]


def break_even_words(draft: ScoredDraft) -> str:
    """The acceptance from which the draft pays by these steps, at the lookahead that promises most."""
    parts = []
    for temperature in draft.card.record.temperatures:
        forecast, row = draft.forecast(temperature), draft.row(temperature)
        best = forecast.best_lookahead
        needed = forecast.at(best).break_even_alpha
        pays = "would not pay at any alpha" if needed is None else f"breaks even at alpha {needed:.3f}"
        parts.append(
            f"at temperature {temperature:g} and lookahead {best} the draft alone {pays}; its own is "
            f"{with_interval(row.alpha)}"
        )
    ratio = draft.steps.cost_ratio
    return f"A draft step costs {ratio:.3f} of a target step; {'; '.join(parts)}."
