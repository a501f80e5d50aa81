"""Tokens per round and speed against the lookahead: what was measured beside what formulas promise."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from architectures.pages.blocks import Absent, Block, Figure, Section, Sentence, Table
from eval.acceptance.speedup import iid_tau
from eval.pages.tables import by_draft
from eval.pages.verdict import alpha_words, with_interval
from eval.records.acceptance import Rounds
from eval.records.scorecard_speeds import Forecast
from eval.report_inputs.drafts import ScoredDraft, all_temperatures, plotted, primaries, scored_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes

APART = 0.07  # of a lookahead, between drafts measured at the same one


def lookaheads_section(drafts: Sequence[ScoredDraft]) -> Section:
    """Both plots and their table at every temperature."""
    blocks: list[Block] = [
        Sentence(
            "τ is what a round emits, the target's own token included. Speeds are predicted from τ and the measured "
            "steps (docs/scoring.md, Figures), reading the prompts left out; a filled point with its interval is the "
            "speed that was measured of the draft alone, reading them included, at the lookahead that promised most. "
            "– is not measured."
        )
    ]
    for temperature in all_temperatures(drafts):
        shown = scored_at(plotted(drafts), temperature)
        blocks += [tau_figure(shown, temperature), speed_figure(shown, temperature)]
        blocks.append(lookahead_table(primaries(shown), temperature))
        if not any(draft.live_at(temperature) for draft in shown):
            told = "these scorecards are from before sampled texts were decoded live. `widedraft eval` measures it"
            blocks.append(Absent(f"Measured speed at temperature {temperature:g}: {told}."))
    return Section("Tokens per round and speed against the lookahead", blocks, name="lookahead")


def tau_figure(drafts: Sequence[ScoredDraft], temperature: float) -> Figure:
    """Tokens per round by lookahead, measured and as independent accepts would have it."""

    def draw(axes: "Axes") -> None:
        from eval.pages.drawing import draw_curve, draw_points, whole_ticks

        for index, draft in enumerate(drafts):
            row = draft.row(temperature)
            x = [entry.lookahead for entry in row.lookahead]
            draw_points(axes, x, [entry.tau for entry in row.lookahead], index, draft.label)
            draw_curve(axes, x, [iid_tau(row.alpha.value, g) for g in x], index, f"{draft.label}, independent")
        whole_ticks(axes, all_lookaheads(drafts, temperature))
        axes.set(xlabel="lookahead", ylabel="tokens per round (τ)")

    told = "; ".join(
        f"{draft.label} " + ", ".join(f"{e.tau.value:.3f} at {e.lookahead}" for e in draft.row(temperature).lookahead)
        for draft in drafts
    )
    return Figure(
        name=f"tau-t{temperature:g}",
        alt=f"Tokens per round by lookahead at temperature {temperature:g}: {told}.",
        caption=f"Tokens per round, temperature {temperature:g}",
        draw=draw,
    )


def speed_figure(drafts: Sequence[ScoredDraft], temperature: float) -> Figure:
    """Predicted speed by lookahead, and the speed that was measured."""

    def draw(axes: "Axes") -> None:
        from eval.pages.drawing import draw_measured, draw_parity_line, draw_predicted, whole_ticks

        for index, draft in enumerate(drafts):
            entries = draft.forecast(temperature).lookahead
            x = [entry.lookahead for entry in entries]
            draw_predicted(axes, x, [entry.predicted for entry in entries], index, f"{draft.label}, predicted")
            if live := draft.live_at(temperature):
                shift = APART * (index - (len(drafts) - 1) / 2)
                draw_measured(axes, live.lookahead + shift, live.speedup, index, f"{draft.label}, measured")
        whole_ticks(axes, all_lookaheads(drafts, temperature))
        draw_parity_line(axes)
        axes.set(xlabel="lookahead", ylabel="times the target alone")

    told = "; ".join(speed_words(draft, temperature) for draft in drafts)
    return Figure(
        name=f"speed-t{temperature:g}",
        alt=f"Speed by lookahead at temperature {temperature:g}, 1 being the target alone: {told}.",
        caption=f"Speed of the draft alone, temperature {temperature:g}; above the line at 1 it pays",
        draw=draw,
    )


def all_lookaheads(drafts: Sequence[ScoredDraft], temperature: float) -> list[int]:
    """Those that any of the drafts was scored at."""
    return [entry.lookahead for draft in drafts for entry in draft.row(temperature).lookahead]


def speed_words(draft: ScoredDraft, temperature: float) -> str:
    """A draft's predicted and measured speeds in a sentence's part."""
    entries = draft.forecast(temperature).lookahead
    told = f"{draft.label} predicted " + ", ".join(f"{e.predicted:.2f}x at {e.lookahead}" for e in entries)
    live = draft.live_at(temperature)
    if live is None:
        return told
    return f"{told}, measured {with_interval(live.speedup, times=True)} at {live.lookahead}"


def lookahead_table(drafts: Sequence[ScoredDraft], temperature: float) -> Table:
    """Measured tau beside every prediction, and measured speed where there is one."""
    rows = [
        lookahead_cells(draft, temperature, entry, forecast)
        for draft in drafts
        for entry, forecast in zip(draft.row(temperature).lookahead, draft.forecast(temperature).lookahead, strict=True)
    ]
    columns = (
        "draft",
        "lookahead",
        "τ",
        "τ, independent",
        "measured, the draft alone",
        "predicted",
        "independent",
        "Leviathan's formula",
        "memory-bound",
        "break-even α",
    )
    return by_draft(Table(columns, rows, f"By lookahead, temperature {temperature:g}"))


def lookahead_cells(draft: ScoredDraft, temperature: float, entry: Rounds, forecast: Forecast) -> tuple[str, ...]:
    """A draft at one lookahead."""
    lookahead, live, measured = entry.lookahead, draft.live_at(temperature), "–"
    if live is not None and live.lookahead == lookahead:
        measured = with_interval(live.speedup, times=True)
    return (
        draft.label,
        str(lookahead),
        with_interval(entry.tau),
        f"{iid_tau(draft.row(temperature).alpha.value, lookahead):.3f}",
        measured,
        f"{forecast.predicted:.2f}x",
        f"{forecast.iid:.2f}x",
        f"{forecast.leviathan:.2f}x",
        "unknown" if forecast.memory_bound is None else f"{forecast.memory_bound:.2f}x",
        alpha_words(forecast.break_even_alpha),
    )
