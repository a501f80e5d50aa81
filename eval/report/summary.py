"""The tables of a report's drafts: their speeds, then their acceptance, and what they differ in."""

from collections.abc import Sequence

from architectures.pages.blocks import Absent, Block, Folded, Judged, Section, Sentence, Table
from eval.pages.tables import with_coverage
from eval.pages.verdict import judged, prediction, way_words, with_interval
from eval.records.scorecard_speeds import Live
from eval.records.values import HasInterval
from eval.report.difference_blocks import difference_blocks, gain_blocks
from eval.report_inputs.cards import Card
from eval.report_inputs.drafts import ScoredDraft, all_temperatures, measured, scored_at, twins_apart

SEVERAL = (
    "Speeds were measured in separate sessions: they are compared by their intervals, not paired. `widedraft speed` "
    "with several drafts measures them in the same turns."
)
SPEEDS = (
    "Speed is the time that the target alone takes for whole answers over the time taken here, in the same turns. "
    "Predicted speeds leave reading the prompts out; to compare with them, so does a column here."
)


def summary_section(drafts: Sequence[ScoredDraft], cards: Sequence[Card]) -> Section:
    """Speed, acceptance and differences of the drafts; folded, the same of what they were before."""
    shown, twins = twins_apart(drafts)
    blocks: list[Block] = [*speed_blocks(shown), drafts_table(shown), *difference_blocks(cards)]
    if len(cards) > 1:
        blocks.insert(1, Sentence(SEVERAL))
    if twins:
        blocks.append(undistilled(drafts_table(twins), *gain_blocks(cards), more=", and what distilling gained"))
    return Section("The drafts", blocks, name="drafts")


def undistilled(*blocks: Block, more: str = "") -> Folded:
    """What is told of the drafts before they were distilled."""
    return Folded(f"Undistilled drafts{more}", blocks)


def speed_blocks(drafts: Sequence[ScoredDraft]) -> list[Block]:
    """What every way of live decoding did; or why there is none."""
    live = measured(drafts)
    if not live:
        return [Absent("Measured speed: temperature 0, at which decoding is measured, was not scored.")]
    columns = ("draft", "speed", "verdict", "way", "without reading the prompts", "over n-gram lookup")
    rows = [row for draft in live for row in way_rows(draft)]
    return [Table(columns, rows, "Measured speed"), Sentence(SPEEDS)]


def times(speed: HasInterval) -> str:
    return with_interval(speed, times=True)


def way_rows(draft: ScoredDraft) -> list[tuple[object, ...]]:
    """The draft alone, and the other ways of its scorecard; older ones have none."""
    live = draft.live
    assert live is not None, "it was measured"
    alone = (f"draft, lookahead {live.lookahead}", live.speedup, live.decoding_speedup, over_lookup(live, live.draft))
    ways = [(way_words(row), row.speedup, row.decoding_speedup, over_lookup(live, row.way)) for row in live.ways]
    told = [alone, *ways]
    return [
        (draft.label, times(speed), Judged(judged(draft.card.record, speed)), way, times(part), over)
        for way, speed, part, over in told
    ]


def over_lookup(live: Live, way: str) -> str:
    """A way over n-gram lookup alone; – where that was not measured."""
    found = [with_interval(row.speedup, times=True) for row in live.over_lookup if row.way == way]
    return found[0] if found else "–"


def drafts_table(drafts: Sequence[ScoredDraft]) -> Table:
    """Acceptance of some drafts, and what it promises."""
    columns = ("draft", "temperature", "predicted speed", "α", "τ", "at lookahead", "layers × hidden")
    shown = [
        (draft, temperature) for temperature in all_temperatures(drafts) for draft in scored_at(drafts, temperature)
    ]
    rows = [draft_cells(draft, temperature) for draft, temperature in shown]
    caption = "Acceptance and predicted speed"
    if shown and all(draft.is_undistilled for draft, _ in shown):
        caption = f"{caption}, undistilled"
    coverages = [draft.row(temperature).coverage for draft, temperature in shown]
    return with_coverage(Table(columns, rows, caption), coverages)


def draft_cells(draft: ScoredDraft, temperature: float) -> tuple[str, ...]:
    """One draft at one temperature; tau at the lookahead that promises most."""
    row, forecast = draft.row(temperature), draft.forecast(temperature)
    return (
        draft.label,
        f"{temperature:g}",
        prediction(draft.card.record, forecast),
        with_interval(row.alpha),
        with_interval(row.at(forecast.best_lookahead).tau),
        str(forecast.best_lookahead),
        f"{draft.model.layers} × {draft.model.hidden}",
    )
