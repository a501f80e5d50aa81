"""Tokens per round and speed against the lookahead: what was measured beside what formulas promise."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from architectures.pages.blocks import Absent, Block, Figure, Section, Sentence, Table
from eval.acceptance.speedup import iid_tau
from eval.pages.tables import by_draft
from eval.pages.verdict import alpha_words, speedup_words, with_interval
from eval.records.acceptance import Rounds
from eval.records.speeds import Forecast
from eval.report_inputs.drafts import ScoredDraft, all_temperatures, plotted, primaries, scored_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes

APART = 0.07  # of a lookahead, between drafts measured at the same one


def lookaheads_section(drafts: Sequence[ScoredDraft]) -> Section:
    """Both plots and their table at every temperature."""
    blocks: list[Block] = [
        Sentence(
            "τ is what a round emits, the target's own token included. Speeds are predicted from τ and the measured "
            "steps (docs/scoring.md, Figures); a filled point with its interval is a speed that was measured while "
            "decoding, the reading of the prompt left out, at the lookahead that promised most. – is not measured."
        )
    ]
    for temperature in all_temperatures(drafts):
        shown = scored_at(plotted(drafts), temperature)
        blocks += [tau_figure(shown, temperature), speed_figure(shown, temperature)]
        blocks.append(lookahead_table(primaries(shown), temperature))
        if not any(is_measured(one, temperature) for one in shown):
            blocks.append(Absent(f"Measured speed at temperature {temperature:g}: the live loop decodes greedily."))
    return Section("Tokens per round and speed against the lookahead", blocks, name="lookahead")


def is_measured(one: ScoredDraft, temperature: float) -> bool:
    """Whether its speed was measured at a temperature."""
    return one.live is not None and one.live.temperature == temperature


def tau_figure(drafts: Sequence[ScoredDraft], temperature: float) -> Figure:
    """Tokens per round by lookahead, measured and as independent accepts would have it."""

    def draw(axes: "Axes") -> None:
        from eval.pages.drawing import draw_curve, draw_points, whole_ticks

        for place, one in enumerate(drafts):
            row = one.row(temperature)
            x = [entry.lookahead for entry in row.lookahead]
            draw_points(axes, x, [entry.tau for entry in row.lookahead], place, one.label)
            draw_curve(axes, x, [iid_tau(row.alpha.value, g) for g in x], place, f"{one.label}, independent")
        whole_ticks(axes, all_lookaheads(drafts, temperature))
        axes.set(xlabel="lookahead", ylabel="tokens per round (τ)")

    told = "; ".join(
        f"{one.label} " + ", ".join(f"{e.tau.value:.3f} at {e.lookahead}" for e in one.row(temperature).lookahead)
        for one in drafts
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
        from eval.pages.drawing import draw_measured, draw_one, draw_predicted, whole_ticks

        for place, one in enumerate(drafts):
            entries = one.forecast(temperature).lookahead
            x = [entry.lookahead for entry in entries]
            draw_predicted(axes, x, [entry.predicted for entry in entries], place, f"{one.label}, predicted")
            if is_measured(one, temperature):
                assert one.live is not None
                beside = APART * (place - (len(drafts) - 1) / 2)
                at = one.live.lookahead + beside
                draw_measured(axes, at, one.live.decoding_speedup, place, f"{one.label}, measured")
        whole_ticks(axes, all_lookaheads(drafts, temperature))
        draw_one(axes)
        axes.set(xlabel="lookahead", ylabel="times the target alone")

    told = "; ".join(speed_words(one, temperature) for one in drafts)
    return Figure(
        name=f"speed-t{temperature:g}",
        alt=f"Speed by lookahead at temperature {temperature:g}, 1 being the target alone: {told}.",
        caption=f"Speed, temperature {temperature:g}; above the line at 1 the draft pays",
        draw=draw,
    )


def all_lookaheads(drafts: Sequence[ScoredDraft], temperature: float) -> list[int]:
    """Those that any of the drafts was scored at."""
    return [entry.lookahead for one in drafts for entry in one.row(temperature).lookahead]


def speed_words(one: ScoredDraft, temperature: float) -> str:
    """A draft's predicted and measured speeds in a sentence's part."""
    entries = one.forecast(temperature).lookahead
    told = f"{one.label} predicted " + ", ".join(f"{e.predicted:.2f} at {e.lookahead}" for e in entries)
    if not is_measured(one, temperature):
        return told
    assert one.live is not None
    return f"{told}, measured {with_interval(one.live.decoding_speedup, times=True)} at {one.live.lookahead}"


def lookahead_table(drafts: Sequence[ScoredDraft], temperature: float) -> Table:
    """Measured tau beside every prediction, and measured speed where there is one."""
    rows = [
        lookahead_cells(one, temperature, entry, forecast)
        for one in drafts
        for entry, forecast in zip(one.row(temperature).lookahead, one.forecast(temperature).lookahead, strict=True)
    ]
    columns = (
        "draft",
        "lookahead",
        "τ",
        "τ, independent",
        "measured speed",
        "predicted",
        "independent",
        "Leviathan's formula",
        "memory-bound",
        "break-even α",
    )
    return by_draft(Table(columns, rows, f"By lookahead, temperature {temperature:g}"))


def lookahead_cells(one: ScoredDraft, temperature: float, entry: Rounds, forecast: Forecast) -> tuple[str, ...]:
    """A draft at one lookahead."""
    lookahead = entry.lookahead
    measured = "–"
    if is_measured(one, temperature) and one.live is not None and one.live.lookahead == lookahead:
        measured = with_interval(one.live.decoding_speedup, times=True)
    return (
        one.label,
        str(lookahead),
        with_interval(entry.tau),
        f"{iid_tau(one.row(temperature).alpha.value, lookahead):.3f}",
        measured,
        f"{forecast.predicted:.3f}",
        f"{forecast.iid:.3f}",
        f"{forecast.leviathan:.3f}",
        speedup_words(forecast.memory_bound),
        alpha_words(forecast.break_even_alpha),
    )
