"""The first words of a report, and its table of drafts."""

from collections.abc import Callable, Sequence

from architectures.pages.blocks import Block, Section, Sentence, Table
from eval.acceptance.estimates import Estimate
from eval.pages.tables import with_coverage
from eval.pages.verdict import (
    decision,
    main_way_words,
    prediction,
    too_few_live,
    verdict,
    way_words,
    with_interval,
)
from eval.records.scorecard import Scorecard
from eval.records.scorecard_speeds import Live
from eval.report.batches import batch_words
from eval.report.difference_blocks import difference_blocks
from eval.report_inputs.cards import Card
from eval.report_inputs.drafts import ScoredDraft, all_temperatures, primaries, scored_at
from eval.report_inputs.grid_file import Grids

# What scorecards should share to be compared: where it stands, and what follows where they do not share it.
CONDITIONS: dict[str, tuple[Callable[[Scorecard], str], str]] = {
    "machine": (lambda record: record.machine, "times and speeds of one say nothing of another."),
    "number type": (lambda record: record.settings.dtype, "times and speeds of one say nothing of another."),
    "prompts": (lambda record: record.prompts.ids_sha256[:12], "acceptance and speed may differ for that alone."),
}


def report_verdict(drafts: Sequence[ScoredDraft], grids: Grids) -> str:
    """One sentence: is decoding faster with the draft, or with the fastest of several, and is that decided."""
    named = primaries(drafts)
    if len(named) == 1:
        return draft_verdict(named[0], grids)
    live = [draft for draft in named if draft.live is not None]
    if not live:
        return (
            f"Not measured for any of {len(named)} drafts: temperature 0, at which texts are decoded, was not scored."
        )
    if len(live) == 1:
        return f"Of {len(named)} drafts only {live[0].label} was measured. {draft_verdict(live[0], grids)}"
    best = max(live, key=lambda draft: speed_of(draft).value)
    return f"Of {len(live)} measured drafts {best.label} {standing(best, live)}. {draft_verdict(best, grids)}"


def draft_verdict(draft: ScoredDraft, grids: Grids) -> str:
    """What live decoding with a draft decides, and up to which batch it promises to pay."""
    live, record = draft.live, draft.card.record
    if live is None:
        return verdict(record)
    grid = grids.get(draft.card.path)
    batches = "" if grid is None else batch_words(draft, live.temperature, grid.grid)
    told = decision(live.main_speedup, too_few=too_few_live(record, live))
    return (
        f"{told}: {with_interval(live.main_speedup, times=True)} the speed of the target alone at batch 1, temperature "
        f"{live.temperature:g}, {main_way_words(live)}, on a {record.machine}{batches}."
    )


def ways_sentences(drafts: Sequence[ScoredDraft]) -> list[Sentence]:
    """What every way of live decoding did in the same turns; nothing of older scorecards."""
    return [Sentence(ways_words(draft.label, draft.live)) for draft in drafts if draft.live and draft.live.ways]


def ways_words(label: str, live: Live) -> str:
    """The ways of one draft's scorecard."""
    ways = ", ".join(f"{way_words(row)} {with_interval(row.speedup, times=True)}" for row in live.ways)
    over = ", ".join(f"{row.way} {with_interval(row.speedup, times=True)}" for row in live.over_lookup)
    alone = with_interval(live.speedup, times=True)
    return f"{label}, in the same turns: the draft alone {alone}, {ways}. Over n-gram lookup: {over}."


def standing(best: ScoredDraft, live: Sequence[ScoredDraft]) -> str:
    """Whether the fastest is surely the fastest, and what keeps it from that."""
    if unlike := differing([draft.card for draft in live]):
        return f"came out fastest, which decides nothing between them: they differ in their {' and '.join(unlike)}"
    others = [draft for draft in live if draft is not best]
    close = [draft.label for draft in others if may_be_as_fast(speed_of(draft), speed_of(best))]
    if close:
        return f"came out fastest, which is not decided: its interval overlaps that of {', '.join(close)}"
    return "is the fastest"


def differing(cards: Sequence[Card]) -> list[str]:
    """The conditions that scorecards do not share."""
    return [what for what, (condition, _) in CONDITIONS.items() if len({condition(card.record) for card in cards}) > 1]


def may_be_as_fast(other: Estimate, best: Estimate) -> bool:
    """Whether two intervals of a speed-up overlap; where one is missing nothing says that they do not."""
    if other.interval is None or best.interval is None:
        return True
    return other.interval[1] >= best.interval[0]


def speed_of(draft: ScoredDraft) -> Estimate:
    """The measured speed-up of a draft that was decoded live."""
    assert draft.live is not None
    return draft.live.speedup


def report_warnings(cards: Sequence[Card]) -> list[str]:
    """What must be known before believing the numbers: of each scorecard, and of putting them side by side."""
    told = [f"{card.name}: {text}" if len(cards) > 1 else text for card in cards for text in card.record.warnings]
    for what in differing(cards):
        condition, consequence = CONDITIONS[what]
        listed = ", ".join(f"{card.name} {condition(card.record)}" for card in cards)
        told.append(f"The scorecards differ in their {what} ({listed}): {consequence}")
    return told


def summary_section(drafts: Sequence[ScoredDraft], cards: Sequence[Card]) -> Section:
    """Every draft in a line for each temperature, and what the last gains over the others."""
    blocks: list[Block] = [drafts_table(drafts), *ways_sentences(drafts), *difference_blocks(cards)]
    if len(cards) > 1:
        blocks.insert(
            1,
            Sentence(
                "Speeds were measured in separate sessions: they are compared by their intervals, not paired. "
                "`widedraft speed` with several drafts measures them in the same turns."
            ),
        )
    return Section("The drafts", blocks, name="drafts")


def drafts_table(drafts: Sequence[ScoredDraft]) -> Table:
    """Acceptance and speed of every draft."""
    columns = ("draft", "temperature", "measured speed", "predicted speed", "α", "τ", "at lookahead", "layers × hidden")
    shown = [
        (draft, temperature) for temperature in all_temperatures(drafts) for draft in scored_at(drafts, temperature)
    ]
    rows = [draft_cells(draft, temperature) for draft, temperature in shown]
    table = Table(columns, rows, "Acceptance and speed, 1x being the target alone")
    return with_coverage(table, [draft.row(temperature).coverage for draft, temperature in shown])


def draft_cells(draft: ScoredDraft, temperature: float) -> tuple[str, ...]:
    """One draft at one temperature; tau at the lookahead that promises most."""
    row, forecast = draft.row(temperature), draft.forecast(temperature)
    is_live = draft.live is not None and draft.live.temperature == temperature
    return (
        draft.label,
        f"{temperature:g}",
        with_interval(speed_of(draft), times=True) if is_live else "not measured",
        prediction(draft.card.record, forecast),
        with_interval(row.alpha),
        with_interval(row.at(forecast.best_lookahead).tau),
        str(forecast.best_lookahead),
        f"{draft.model.layers} × {draft.model.hidden}",
    )
