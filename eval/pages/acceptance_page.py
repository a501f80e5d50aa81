"""What scorecard.md says of acceptance. Pure text from the record."""

from collections.abc import Sequence
from typing import Protocol

from eval.pages.tables import rate, table, with_coverage
from eval.pages.verdict import with_interval
from eval.records.acceptance import AcceptanceRow, Bin, Rounds
from eval.records.scorecard import Scorecard

TESTS_NOTE = (
    "p over tokens is McNemar's exact test. It takes tokens for independent, which within a prompt they are not, and "
    "so finds differences too easily. p over prompts flips the sign of whole prompts, and is the one to believe."
)
BIN_TITLES = {
    "task": "task of the prompt",
    "category": "category of the prompt",
    "output_position": "output position (tokens before)",
    "entropy": "entropy of the target (nats)",
}


class RoundsRow(Protocol):
    """Rounds of a draft at one temperature, by lookahead."""

    @property
    def draft(self) -> str: ...

    @property
    def temperature(self) -> float: ...

    @property
    def lookahead(self) -> Sequence[Rounds]: ...


def acceptance_section(scorecard: Scorecard) -> list[str]:
    """Acceptance of every draft: alpha, tau by lookahead, differences, positions, bins."""
    parts = ["## Acceptance", alpha_table(scorecard)]
    for temperature in scorecard.temperatures:
        rows = scorecard.rows_at(temperature)
        parts += [f"### Tokens per round (tau) at temperature {temperature:g}, rule {rows[0].rule}", tau_table(rows)]
        parts += other_rules_part(rows)
    if scorecard.differences:
        parts += ["### Paired differences, same prompts and answers", difference_table(scorecard), TESTS_NOTE]
    ours = [row for row in scorecard.acceptance if row.draft == scorecard.primary]
    for row in ours:
        parts += position_part(row)
    for by in BIN_TITLES:
        parts += bins_part(scorecard, ours, by)
    return parts


def alpha_table(scorecard: Scorecard) -> str:
    """Alpha of every draft, temperature and rule, by three estimates."""
    scored = [(row, rule) for row in scorecard.acceptance for rule in (row, *row.other_rules)]
    cells = [
        (
            row.draft,
            f"{row.temperature:g}",
            rule.rule,
            with_interval(rule.alpha),
            with_interval(rule.alpha_of_text),
            with_interval(rule.lookahead[-1].alpha_of_rounds),
            f"{row.greedy_match.value:.3f}",
            f"{row.prompts} prompts, {row.alpha.tokens:g} tokens",
        )
        for row, rule in scored
    ]
    columns = ("draft", "temperature", "rule", "alpha", "of the text", "of rounds", "argmax agreement", "measured on")
    return table(*with_coverage(columns, cells, [row.coverage for row, _ in scored]))


def other_rules_part(rows: Sequence[AcceptanceRow]) -> list[str]:
    """Tau of the same passes where an engine decides by another rule."""
    scored = [(row.draft, other) for row in rows for other in row.other_rules]
    if not scored:
        return []
    cells = [
        (entries[0].lookahead, *(with_interval(entry.tau) for entry in entries))
        for entries in zip(*(other.lookahead for _, other in scored), strict=True)
    ]
    columns = ("lookahead", *(f"tau, {draft}, {other.rule}" for draft, other in scored))
    return [f"### Under other rules at temperature {rows[0].temperature:g}", table(columns, cells)]


def tau_table(rows: Sequence[RoundsRow]) -> str:
    """Tau by lookahead, one pair of columns per draft."""
    columns = ["lookahead"]
    for row in rows:
        columns += [f"tau, {row.draft}", "mean per prompt", "accepted / proposed", "rounds"]
    cells = []
    for entries in zip(*(row.lookahead for row in rows), strict=True):
        line = [entries[0].lookahead]
        for entry in entries:
            line += [
                with_interval(entry.tau),
                with_interval(entry.tau_per_prompt),
                rate(entry.accepted, entry.proposed, entry.utilisation),
                f"{entry.rounds:.1f}",
            ]
        cells.append(line)
    return table(columns, cells)


def difference_table(scorecard: Scorecard) -> str:
    """What the last draft gains over the others."""
    cells = []
    for row in scorecard.differences:
        best = scorecard.speedup_of(row.draft, row.temperature).best_lookahead
        cells.append(
            (
                f"{row.draft} - {row.baseline}",
                f"{row.temperature:g}",
                with_interval(row.alpha),
                f"{with_interval(row.at(best))} at lookahead {best}",
                with_interval(row.greedy_match),
                f"{row.greedy_match.mcnemar_p:.2g}",
                f"{row.greedy_match.sign_flip_p:.2g}",
            )
        )
    columns = ("alpha", "tau", "argmax agreement", "p over tokens", "p over prompts")
    return table(("difference", "temperature", *columns), cells)


def position_part(row: RoundsRow) -> list[str]:
    """Acceptance by position in the round, at the largest lookahead."""
    entry = row.lookahead[-1]
    cells = [
        (
            p.position,
            rate(p.accepted, entry.rounds, p.joint),
            rate(p.accepted, p.possible, p.unconditional),
            rate(p.accepted, p.reached, p.conditional),
        )
        for p in entry.positions
    ]
    title = f"### By position: {row.draft}, temperature {row.temperature:g}, lookahead {entry.lookahead}"
    columns = ("position", "accepted / rounds", "accepted / rounds with room", "accepted / rounds that came so far")
    return [title, table(columns, cells), histogram_table(entry)]


def histogram_table(entry: Rounds) -> str:
    """How many rounds kept how many tokens."""
    counts = [f"{rounds:.1f}" for rounds in entry.histogram]
    shares = [f"{share.value:.3f}" for share in entry.histogram_share]
    return table(("tokens kept", *map(str, range(len(counts)))), [("rounds", *counts), ("share", *shares)])


def bins_part(scorecard: Scorecard, rows: Sequence[AcceptanceRow], by: str) -> list[str]:
    """Acceptance by bin at each temperature's best lookahead; nothing where one bin holds everything."""
    cells, shown = [], []
    for row in rows:
        best = scorecard.speedup_of(row.draft, row.temperature).best_lookahead
        bins = row.bins_by(by)
        cells += [(f"{row.temperature:g}", *bin_cells(one, best)) for one in bins]
        shown += bins
    if not cells:
        return []
    columns = ("bin", "measured on", "alpha", "argmax agreement", "tau of rounds that start there", "rounds")
    title = f"### By {BIN_TITLES[by]}: {rows[0].draft}"
    return [title, table(*with_coverage(("temperature", *columns), cells, [one.coverage for one in shown]))]


def bin_cells(one: Bin, lookahead: int) -> tuple[str, ...]:
    """A bin's figures, tau and rounds at one lookahead."""
    entry = one.at(lookahead)
    return (
        one.bin,
        f"{one.prompts} prompts, {one.alpha.tokens} tokens",
        with_interval(one.alpha),
        f"{one.greedy_match.value:.3f}",
        f"{with_interval(entry.tau)} at lookahead {lookahead}",
        f"{entry.rounds:.1f}",
    )
