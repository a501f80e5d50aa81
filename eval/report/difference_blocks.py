"""Paired differences of drafts on the same prompts and answers: a scorecard's own, and those of two scorecards."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from architectures.pages.blocks import Absent, Block, Sentence, Table
from eval.acceptance.estimates import Estimate, Resampling, paired_ratio_difference
from eval.acceptance.paired_tests import sign_flip_p
from eval.pages.verdict import with_interval
from eval.records.acceptance import PromptSums
from eval.records.differences import DifferenceRow
from eval.records.origin import UNDISTILLED
from eval.report_inputs.cards import Card
from eval.report_inputs.drafts import ScoredDraft, label_of

COLUMNS = ("difference", "temperature", "α", "τ", "at lookahead", "argmax agreement", "p over prompts")
NOTE = (
    "Each difference is first minus second, resampled with the same prompts for both; an interval that holds 0 shows "
    "none. p flips the sign of whole prompts."
)


@dataclass(frozen=True)
class Differences:
    """Of two drafts on the same answers; the p value flips the sign of whole prompts."""

    alpha: Estimate
    tau: Estimate
    greedy_match: Estimate
    sign_flip_p: float


def difference_blocks(cards: Sequence[Card]) -> Sequence[Block]:
    """A table of all differences, and why others cannot be told."""
    differences = [*(cells for row, cells in within(cards) if row.baseline != UNDISTILLED), *between(cards)]
    rows = [row for row in differences if isinstance(row, tuple)]
    absent = [Absent(reason) for reason in differences if isinstance(reason, str)]
    if not rows:
        alone = "Paired differences: only one draft was scored. Name another run, or score a baseline."
        return absent or [Absent(alone)]
    return [Table(COLUMNS, rows, "Paired differences on the same prompts and answers"), Sentence(NOTE), *absent]


def gain_blocks(cards: Sequence[Card]) -> Sequence[Block]:
    """The same of every draft and what it was before it was distilled; nothing where that was not scored."""
    rows = [cells for row, cells in within(cards) if row.baseline == UNDISTILLED]
    return (
        [Table(COLUMNS, rows, "What distilling gained, on the same prompts and answers"), Sentence(NOTE)]
        if rows
        else []
    )


def within(cards: Sequence[Card]) -> Iterator[tuple[DifferenceRow, tuple[str, ...]]]:
    """The differences that scorecards hold, and their cells."""
    for card in cards:
        for row in card.record.differences:
            names = [label_of(cards, card, name) for name in (row.draft, row.baseline)]
            best = card.record.speedup_of(row.draft, row.temperature).best_lookahead
            sign_flip_p = row.greedy_match.sign_flip_p
            told = Differences(row.alpha, row.at(best), row.greedy_match, sign_flip_p)
            yield row, cells(names, row.temperature, told, best)


def between(cards: Sequence[Card]) -> Iterator[tuple[str, ...] | str]:
    """Rows of every further scorecard's draft against the first one's; or why there is none."""
    first, *others = cards
    for card in others:
        names = [label_of(cards, shown, shown.draft) for shown in (card, first)]
        for temperature in card.record.temperatures:
            reason = unpaired(card, first, temperature)
            if reason is not None:
                yield f"Paired difference {names[0]} − {names[1]} at temperature {temperature:g}: {reason}"
                continue
            pair = (ScoredDraft(shown, shown.draft, name) for shown, name in zip((card, first), names, strict=True))
            yield paired_cells(*pair, temperature=temperature)


def unpaired(card: Card, first: Card, temperature: float) -> str | None:
    """Why two scorecards' drafts cannot be paired at a temperature; None if they can."""
    if temperature not in first.record.temperatures:
        return f"{first.path} was not scored at it."
    if card.record.prompts.ids_sha256 != first.record.prompts.ids_sha256:
        return "the prompts were others. Score both on the same prompts."
    if answers_of(card, temperature) != answers_of(first, temperature):
        return "the target's answers were others. Score both with the same number type, seed and length."
    for scored in (card, first):
        if ScoredDraft(scored, scored.draft, scored.name).row(temperature).by_prompt is None:
            return f"{scored.path} does not hold the sums of every prompt. Score again with this version."
    if not shared_lookaheads(card, first):
        return "no lookahead was scored for both."
    return None


def answers_of(card: Card, temperature: float) -> str:
    """Hash of the target's answers at a temperature."""
    return card.record.prompts.ids_at(temperature)


def shared_lookaheads(*cards: Card) -> set[int]:
    """Those that all were scored at."""
    return set.intersection(*(set(card.record.latency.lookaheads) for card in cards))


def paired_cells(first: ScoredDraft, second: ScoredDraft, *, temperature: float) -> tuple[str, ...]:
    """A row of two drafts of two scorecards; tau at the best lookahead of the first if both have it, or the largest."""
    shared, best = shared_lookaheads(first.card, second.card), first.forecast(temperature).best_lookahead
    lookahead = best if best in shared else max(shared)
    ours, theirs = (draft.row(temperature).by_prompt for draft in (first, second))
    assert ours is not None, "else they are not paired"
    assert theirs is not None, "likewise"
    difference = paired_difference(ours, theirs, lookahead=lookahead, resampling=first.card.resampling)
    return cells([first.label, second.label], temperature, difference, lookahead)


def paired_difference(first: PromptSums, second: PromptSums, *, lookahead: int, resampling: Resampling) -> Differences:
    """First minus second, as a scorecard tells it of two of its own drafts.

    Args:
        first: Sums of every prompt under one draft.
        second: The same of the same answers under another.
        lookahead: Of tau.
        resampling: How intervals and sign flips are made.
    """
    gain_P = np.array(first.greedy_match) - np.array(second.greedy_match)
    rounds, others = first.rounds_at(lookahead), second.rounds_at(lookahead)
    return Differences(
        alpha=paired_ratio_difference((first.alpha, first.tokens), (second.alpha, second.tokens), resampling),
        tau=paired_ratio_difference((first.tokens, rounds), (second.tokens, others), resampling),
        greedy_match=paired_ratio_difference(
            (first.greedy_match, first.tokens), (second.greedy_match, second.tokens), resampling
        ),
        sign_flip_p=sign_flip_p(gain_P, resampling),
    )


def cells(names: Sequence[str], temperature: float, difference: Differences, lookahead: int) -> tuple[str, ...]:
    return (
        f"{names[0]} − {names[1]}",
        f"{temperature:g}",
        with_interval(difference.alpha),
        with_interval(difference.tau),
        str(lookahead),
        with_interval(difference.greedy_match),
        f"{difference.sign_flip_p:.2g}",
    )
