"""What scorecard.md says of acceptance. Pure, from the record."""

from collections.abc import Mapping, Sequence

from architectures.pages.blocks import Block, Section, Sentence, Table
from eval.pages.tables import rate, with_coverage
from eval.pages.verdict import with_interval
from eval.records.acceptance import AcceptanceRow, Bin, RecordedRow, Rounds
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


def acceptance_section(scorecard: Scorecard) -> Section:
    """Acceptance of every draft: alpha, tau by lookahead, differences, positions, bins."""
    blocks: list[Block] = [alpha_table(scorecard)]
    for temperature in scorecard.temperatures:
        rows = scorecard.rows_at(temperature)
        blocks += [tau_section(rows), *other_rules_section(rows)]
    if scorecard.differences:
        told = [difference_table(scorecard), Sentence(TESTS_NOTE)]
        blocks.append(Section("Paired differences, same prompts and answers", told))
    ours = [row for row in scorecard.acceptance if row.draft == scorecard.primary]
    blocks += [position_section(row.draft, row.temperature, row.lookahead[-1]) for row in ours]
    for by in BIN_TITLES:
        blocks += bins_section(scorecard, ours, by)
    return Section("Acceptance", blocks)


def alpha_table(scorecard: Scorecard) -> Table:
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
    return with_coverage(Table(columns, cells), [row.coverage for row, _ in scored])


def tau_section(rows: Sequence[AcceptanceRow] | Sequence[RecordedRow]) -> Section:
    """Tau of every draft at one temperature, under one rule."""
    title = f"Tokens per round (tau) at temperature {rows[0].temperature:g}, rule {rows[0].rule}"
    return Section(title, [tau_table({row.draft: row.lookahead for row in rows})])


def other_rules_section(rows: Sequence[AcceptanceRow]) -> list[Section]:
    """Tau of the same passes where an engine decides by another rule."""
    scored = [(row.draft, other) for row in rows for other in row.other_rules]
    if not scored:
        return []
    cells = [
        (entries[0].lookahead, *(with_interval(entry.tau) for entry in entries))
        for entries in zip(*(other.lookahead for _, other in scored), strict=True)
    ]
    columns = ("lookahead", *(f"tau, {draft}, {other.rule}" for draft, other in scored))
    return [Section(f"Under other rules at temperature {rows[0].temperature:g}", [Table(columns, cells)])]


def tau_table(rounds: Mapping[str, Sequence[Rounds]]) -> Table:
    """Tau by lookahead, some columns for each draft."""
    columns = ["lookahead"]
    for draft in rounds:
        columns += [f"tau, {draft}", "mean per prompt", "accepted / proposed", "rounds"]
    cells = []
    for entries in zip(*rounds.values(), strict=True):
        line = [entries[0].lookahead]
        for entry in entries:
            line += [
                with_interval(entry.tau),
                with_interval(entry.tau_per_prompt),
                rate(entry.accepted, entry.proposed, entry.utilisation),
                f"{entry.rounds:.1f}",
            ]
        cells.append(line)
    return Table(columns, cells)


def difference_table(scorecard: Scorecard) -> Table:
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
    return Table(("difference", "temperature", *columns), cells)


def position_section(draft: str, temperature: float, entry: Rounds) -> Section:
    """Acceptance by position in the round, at one lookahead."""
    cells = [
        (
            p.position,
            rate(p.accepted, entry.rounds, p.joint),
            rate(p.accepted, p.possible, p.unconditional),
            rate(p.accepted, p.reached, p.conditional),
        )
        for p in entry.positions
    ]
    title = f"By position: {draft}, temperature {temperature:g}, lookahead {entry.lookahead}"
    columns = ("position", "accepted / rounds", "accepted / rounds with room", "accepted / rounds that came so far")
    return Section(title, [Table(columns, cells), histogram_table(entry)])


def histogram_table(entry: Rounds) -> Table:
    """How many rounds kept how many tokens."""
    counts = [f"{rounds:.1f}" for rounds in entry.histogram]
    shares = [f"{share.value:.3f}" for share in entry.histogram_share]
    return Table(("tokens kept", *map(str, range(len(counts)))), [("rounds", *counts), ("share", *shares)])


def bins_section(scorecard: Scorecard, rows: Sequence[AcceptanceRow], by: str) -> list[Section]:
    """Acceptance by bin at each temperature's best lookahead; nothing where one bin holds everything."""
    cells, shown = [], []
    for row in rows:
        best = scorecard.speedup_of(row.draft, row.temperature).best_lookahead
        bins = row.bins_by(by)
        cells += [(f"{row.temperature:g}", *bin_cells(bin_, best)) for bin_ in bins]
        shown += bins
    if not cells:
        return []
    columns = ("bin", "measured on", "alpha", "argmax agreement", "tau of rounds that start there", "rounds")
    table = with_coverage(Table(("temperature", *columns), cells), [bin_.coverage for bin_ in shown])
    return [Section(f"By {BIN_TITLES[by]}: {rows[0].draft}", [table])]


def bin_cells(bin_: Bin, lookahead: int) -> tuple[str, ...]:
    """A bin's figures, tau and rounds at one lookahead."""
    entry = bin_.at(lookahead)
    return (
        bin_.bin,
        f"{bin_.prompts} prompts, {bin_.alpha.tokens} tokens",
        with_interval(bin_.alpha),
        f"{bin_.greedy_match.value:.3f}",
        f"{with_interval(entry.tau)} at lookahead {lookahead}",
        f"{entry.rounds:.1f}",
    )
