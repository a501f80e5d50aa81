"""What drafts must share to be compared, and whether one of them is surely the fastest."""

from collections.abc import Callable, Sequence

from eval.acceptance.estimates import Estimate
from eval.records.scorecard import Scorecard
from eval.report_inputs.cards import Card
from eval.report_inputs.drafts import ScoredDraft, speed_of

# What scorecards should share to be compared: where it stands, and what follows where they do not share it.
CONDITIONS: dict[str, tuple[Callable[[Scorecard], str], str]] = {
    "machine": (lambda record: record.machine, "times and speeds of one say nothing of another."),
    "number type": (lambda record: record.settings.dtype, "times and speeds of one say nothing of another."),
    "prompts": (lambda record: record.prompts.ids_sha256[:12], "acceptance and speed may differ for that alone."),
}


def standing(best: ScoredDraft, live: Sequence[ScoredDraft]) -> str | None:
    """Why it is not decided that the draft that came out fastest is the fastest; None if it is."""
    if unlike := differing([draft.card for draft in live]):
        return f"the scorecards differ in their {' and '.join(unlike)}"
    others = [draft for draft in live if draft is not best]
    close = [draft.label for draft in others if may_be_as_fast(speed_of(draft), speed_of(best))]
    return f"its interval overlaps {those_of(close)}" if close else None


def those_of(labels: Sequence[str]) -> str:
    return f"{'that' if len(labels) == 1 else 'those'} of {', '.join(labels)}"


def differing(cards: Sequence[Card]) -> list[str]:
    """The conditions that scorecards do not share."""
    return [what for what, (condition, _) in CONDITIONS.items() if len({condition(card.record) for card in cards}) > 1]


def may_be_as_fast(other: Estimate, best: Estimate) -> bool:
    """Whether two intervals of a speed-up overlap; where one is missing nothing says that they do not."""
    if other.interval is None or best.interval is None:
        return True
    return other.interval[1] >= best.interval[0]


def report_warnings(cards: Sequence[Card]) -> list[str]:
    """What must be known before believing the numbers: of the scorecards, and of putting them side by side."""
    warned: dict[str, list[str]] = {}
    for card in cards:
        for text in card.record.warnings:
            warned.setdefault(text, []).append(card.name)
    told = [f"{', '.join(names)}: {text}" if len(cards) > 1 else text for text, names in warned.items()]
    for what in differing(cards):
        condition, consequence = CONDITIONS[what]
        listed = ", ".join(f"{card.name} {condition(card.record)}" for card in cards)
        told.append(f"The scorecards differ in their {what} ({listed}): {consequence}")
    return told
