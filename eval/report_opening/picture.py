"""The picture of a report's first screen: the speed of every draft with its interval, beside what needs no draft."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from architectures.pages.blocks import MARKS, Figure
from eval.acceptance.estimates import Estimate
from eval.pages.drawing import SpeedRow, rows_height
from eval.pages.verdict import figure_words, judged, with_interval
from eval.predictions.ranking import predicted_interval
from eval.records.scorecard import Scorecard
from eval.records.scorecard_speeds import LOOKUP, POLICY
from eval.report_inputs.drafts import ScoredDraft, measured, primaries, speed_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def speeds_figure(drafts: Sequence[ScoredDraft]) -> Figure:
    """Every draft in a row, the fastest first; below them those that were not measured, as predicted."""
    rows = speed_rows(drafts)

    def draw(axes: "Axes") -> None:
        from eval.pages.drawing import draw_speed_rows

        draw_speed_rows(axes, rows)

    told = "; ".join(f"{row.name} {row.words}{lookup_words(row)}" for row in rows)
    return Figure(
        name="speeds",
        alt=f"Speed over the target alone: {told}.",
        caption="Speed over the target alone, with intervals",
        draw=draw,
        width=4.7,
        height=rows_height(rows),
    )


def speed_rows(drafts: Sequence[ScoredDraft]) -> list[SpeedRow]:
    """Measured drafts, the fastest first; then the predicted ones, likewise. Of a single draft all of its ways."""
    live, named = measured(drafts), primaries(drafts)
    rows = [row for draft in live for row in ([measured_row(draft)] if len(named) > 1 else all_ways(draft))]
    others = [predicted_row(draft) for draft in named if draft not in live]
    return [*sorted(rows, key=lambda row: -row.speed), *sorted(others, key=lambda row: -row.speed)]


def measured_row(draft: ScoredDraft) -> SpeedRow:
    """The speed of a draft that was decoded live, beside lookup in the same turns."""
    assert draft.live is not None, "it was measured"
    lookup = draft.live.way(LOOKUP)
    name = draft.label if draft.live.way(POLICY) is None else f"{draft.label} with its policy"
    return replace(
        row_of(name, speed_of(draft), draft.card.record), lookup=None if lookup is None else lookup.speedup.value
    )


def all_ways(draft: ScoredDraft) -> list[SpeedRow]:
    """A draft with its policy and alone, and lookup, as far as they were decoded."""
    live, record = draft.live, draft.card.record
    assert live is not None, "it was measured"
    alone = "the draft" if live.way(POLICY) is None else "the draft alone"
    names = {POLICY: "the draft with its policy", LOOKUP: f"{LOOKUP}, no draft"}
    lookup = live.way(LOOKUP)
    line = None if lookup is None else lookup.speedup.value
    rows = [row_of(alone, live.speedup, record), *(row_of(names[row.way], row.speedup, record) for row in live.ways)]
    return [replace(row, lookup=line) for row in rows]


def row_of(name: str, speed: Estimate, record: Scorecard) -> SpeedRow:
    """A measured speed of a scorecard in words and with its mark."""
    told = judged(record, speed)
    words = f"{MARKS[told]} {told} {with_interval(speed, times=True)}"
    return SpeedRow(name, speed.value, speed.interval, told, words)


def predicted_row(draft: ScoredDraft) -> SpeedRow:
    """What acceptance and step times promise of a draft."""
    forecast, record = draft.main_forecast, draft.card.record
    row, resampling = draft.row(forecast.temperature), record.settings.resampling
    interval = predicted_interval(row, forecast.best_lookahead, record.latency, resampling)
    words = figure_words(forecast.predicted, interval, times=True)
    return SpeedRow(
        name=draft.label,
        speed=forecast.predicted,
        interval=interval,
        judgement="not measured",
        words=f"{MARKS['not measured']} predicted {words}",
    )


def lookup_words(row: SpeedRow) -> str:
    """Lookup in the turns of a row."""
    return "" if row.lookup is None else f", n-gram lookup {row.lookup:.2f}x"
