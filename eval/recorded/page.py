"""What a scorecard without a target says in words: its page, its verdict, its headline. Pure, from the record."""

from architectures.pages.blocks import Block, Caution, Facts, Section, Table, Verdict
from architectures.pages.counts import number_of
from eval.pages.acceptance_page import position_section, tau_section
from eval.pages.scorecard_page import FIGURES
from eval.pages.tables import with_coverage
from eval.pages.verdict import with_interval
from eval.records.scorecard import RecordedScorecard


def recorded_page(scorecard: RecordedScorecard) -> Section:
    """scorecard.md: the verdict first, then what is not in it, then the tables."""
    blocks = [
        Verdict(scorecard.verdict),
        *map(Caution, scorecard.warnings),
        FIGURES,
        left_out_section(scorecard),
        acceptance_section(scorecard),
        method_section(scorecard),
    ]
    return Section(f"Scorecard of {scorecard.drafts[0].path} on recorded answers", blocks)


def verdict(scorecard: RecordedScorecard) -> str:
    """One sentence: which share of the answers the draft would have written, and that this is no speed."""
    row = scorecard.acceptance[0]
    last = row.lookahead[-1]
    return (
        f"The draft proposes the target's token at {with_interval(row.accept_rate)} of the places of its recorded "
        f"answers at temperature {row.temperature:g}, and a round of lookahead {last.lookahead} emits "
        f"{with_interval(last.tau)} tokens (rule {row.rule}). How fast that is takes the target to say."
    )


def headline(scorecard: RecordedScorecard) -> str:
    """The few lines a scoring ends with."""
    lines = [scorecard.verdict, *(f"WARNING: {text}" for text in scorecard.warnings)]
    for row in scorecard.acceptance:
        taus = ", ".join(f"{entry.tau.value:.2f} at {entry.lookahead}" for entry in row.lookahead)
        lines.append(f"accept rate, {row.rule}: {with_interval(row.accept_rate)}; tau by lookahead: {taus}")
    figures = "; ".join(entry.figure for entry in scorecard.left_out)
    return "\n".join([*lines, f"not known without the target: {figures}"])


def find_warnings(scorecard: RecordedScorecard) -> tuple[str, ...]:
    """What a reader must know before believing the numbers."""
    warnings, recording = [], scorecard.recording
    if recording.unanswered:
        warnings.append(
            f"{recording.path} answers the first {recording.given:,} of {recording.given + recording.unanswered:,} "
            f"prompts: these are used, the {recording.unanswered:,} behind them are left out."
        )
    if recording.form == "text":
        warnings.append(
            "The text does not say which tokenizer its ids are of; only their range was checked. With another "
            "tokenizer than the draft's every figure here is meaningless."
        )
    if recording.scored < 2:
        warnings.append("Only one prompt was scored: nothing here has an interval.")
    return tuple(warnings)


def left_out_section(scorecard: RecordedScorecard) -> Section:
    """What is missing, and why."""
    cells = [(entry.figure, entry.reason) for entry in scorecard.left_out]
    return Section("Left out: the target is not here", [Table(("figure", "why"), cells)])


def acceptance_section(scorecard: RecordedScorecard) -> Section:
    """Accept rate and tau under every rule the answers decide."""
    rows = scorecard.acceptance
    cells = [
        (
            row.rule,
            f"{row.temperature:g}",
            with_interval(row.accept_rate),
            f"{row.prompts} prompts, {row.accept_rate.tokens:g} tokens",
        )
        for row in rows
    ]
    columns = ("rule", "temperature", "accept rate", "measured on")
    blocks: list[Block] = [with_coverage(Table(columns, cells), [row.coverage for row in rows])]
    for row in rows:
        blocks += [tau_section([row]), position_section(row.draft, row.temperature, row.lookahead[-1])]
    return Section("Acceptance", blocks)


def method_section(scorecard: RecordedScorecard) -> Section:
    """Where the numbers come from."""
    recording, settings, origin = scorecard.recording, scorecard.settings, scorecard.provenance
    draft = scorecard.drafts[0]
    facts = [
        (
            "Draft",
            (
                f"{number_of(draft.layers, 'layer')}, hidden {draft.hidden}, {draft.parameters:,} parameters, "
                f"number type {draft.dtype}."
            ),
        ),
        (
            "Answers",
            (
                f"{recording.path} ({recording.form}), {recording.given} prompts given, "
                f"{recording.scored} scored, {recording.tokens} tokens; target "
                f"{recording.target_fingerprint or 'not named'}."
            ),
        ),
        (
            "Intervals",
            (
                f"{100 * settings.confidence:g} % {settings.intervals} over prompts, "
                f"{settings.num_resamples} resamples, seed {settings.seed}."
            ),
        ),
        ("Machine", f"{scorecard.machine}."),
        ("Versions", f"{origin.words}."),
    ]
    return Section("How it was measured", [Facts(facts)])
