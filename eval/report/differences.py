"""Paired differences of drafts on the same prompts and answers: a scorecard's own, and those of two scorecards."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from eval.acceptance.comparison import sign_flip_p
from eval.acceptance.estimates import Resampling, paired_ratio_difference
from eval.pages.blocks import Absent, Block, Sentence, Table
from eval.pages.verdict import speedup_of, temperatures, with_interval
from eval.report_inputs.cards import Card
from eval.report_inputs.drafts import ScoredDraft, label_of
from eval.scorecard.acceptance_record import estimate_record

Record = dict[str, Any]

COLUMNS = ("difference", "temperature", "α", "τ", "at lookahead", "argmax agreement", "p over prompts")


def difference_blocks(cards: Sequence[Card]) -> Sequence[Block]:
    """A table of all differences, and why others cannot be told."""
    found = [*within(cards), *between(cards)]
    rows = [one for one in found if isinstance(one, tuple)]
    absent = [Absent(one) for one in found if isinstance(one, str)]
    if not rows:
        alone = "Paired differences: only one draft was scored. Name another run, or score a baseline."
        return absent or [Absent(alone)]
    note = Sentence(
        "Each difference is first minus second, resampled with the same prompts for both; an interval that holds 0 "
        "shows none. p flips the sign of whole prompts."
    )
    return [Table("Paired differences on the same prompts and answers", COLUMNS, rows), note, *absent]


def within(cards: Sequence[Card]) -> Iterator[tuple[str, ...]]:
    """Rows of the differences that scorecards hold."""
    for card in cards:
        for row in card.record["differences"]:
            names = [label_of(cards, card, row[role]) for role in ("draft", "baseline")]
            best = speedup_of(card.record, row["draft"], row["temperature"])["best_lookahead"]
            [entry] = [entry for entry in row["lookahead"] if entry["lookahead"] == best]
            yield cells(names, row["temperature"], row, entry["tau"], best)


def between(cards: Sequence[Card]) -> Iterator[tuple[str, ...] | str]:
    """Rows of every further scorecard's draft against the first one's; or why there is none."""
    first, *others = cards
    for card in others:
        names = [label_of(cards, one, one.draft) for one in (card, first)]
        for temperature in temperatures(card.record):
            reason = unpaired(card, first, temperature)
            if reason is not None:
                yield f"Paired difference {names[0]} − {names[1]} at temperature {temperature:g}: {reason}"
                continue
            pair = (ScoredDraft(one, one.draft, name) for one, name in zip((card, first), names, strict=True))
            yield paired_cells(*pair, temperature=temperature)


def unpaired(card: Card, first: Card, temperature: float) -> str | None:
    """Why two scorecards' drafts cannot be paired at a temperature; None if they can."""
    if temperature not in temperatures(first.record):
        return f"{first.path} was not scored at it."
    if card.record["prompts"]["ids_sha256"] != first.record["prompts"]["ids_sha256"]:
        return "the prompts were others. Score both on the same prompts."
    if answers_of(card, temperature) != answers_of(first, temperature):
        return "the target's answers were others. Score both with the same number type, seed and length."
    for one in (card, first):
        if ScoredDraft(one, one.draft, one.name).row(temperature).get("by_prompt") is None:
            return f"{one.path} does not hold the sums of every prompt. Score again with this version."
    if not shared_lookaheads(card, first):
        return "no lookahead was scored for both."
    return None


def answers_of(card: Card, temperature: float) -> str:
    """Hash of the target's answers at a temperature."""
    [found] = [one for one in card.record["prompts"]["answers"] if one["temperature"] == temperature]
    return found["ids_sha256"]


def shared_lookaheads(*cards: Card) -> set[int]:
    """Those that all were scored at."""
    return set.intersection(
        *({one["lookahead"] for one in card.record["acceptance"][0]["lookahead"]} for card in cards)
    )


def paired_cells(first: ScoredDraft, second: ScoredDraft, *, temperature: float) -> tuple[str, ...]:
    """A row of two drafts of two scorecards; tau at the best lookahead of the first if both have it, or the largest."""
    shared, best = shared_lookaheads(first.card, second.card), first.forecast(temperature)["best_lookahead"]
    lookahead = best if best in shared else max(shared)
    sums = (one.row(temperature)["by_prompt"] for one in (first, second))
    found = paired_difference(*sums, lookahead=lookahead, resampling=first.card.resampling)
    return cells([first.label, second.label], temperature, found, found["tau"], lookahead)


def paired_difference(first: Record, second: Record, *, lookahead: int, resampling: Resampling) -> Record:
    """First minus second: alpha, tau and argmax agreement, as a scorecard tells them of two of its own drafts.

    Args:
        first: Sums of every prompt under one draft.
        second: The same of the same answers under another.
        lookahead: Of tau.
        resampling: How intervals and sign flips are made.
    """
    gain_P = np.array(first["greedy_match"]) - np.array(second["greedy_match"])
    columns = {name: [(one[name], one["tokens"]) for one in (first, second)] for name in ("alpha", "greedy_match")}
    columns["tau"] = [(one["tokens"], rounds_of(one, lookahead)) for one in (first, second)]
    found = {
        name: estimate_record(paired_ratio_difference(one, other, resampling)) for name, (one, other) in columns.items()
    }
    found["greedy_match"]["sign_flip_p"] = sign_flip_p(gain_P, resampling)
    return found


def rounds_of(by_prompt: Record, lookahead: int) -> list[float]:
    [entry] = [one for one in by_prompt["rounds"] if one["lookahead"] == lookahead]
    return entry["counts"]


def cells(names: Sequence[str], temperature: float, row: Record, tau: Record, lookahead: int) -> tuple[str, ...]:
    return (
        f"{names[0]} − {names[1]}",
        f"{temperature:g}",
        with_interval(row["alpha"]),
        with_interval(tau),
        str(lookahead),
        with_interval(row["greedy_match"]),
        f"{row['greedy_match']['sign_flip_p']:.2g}",
    )
