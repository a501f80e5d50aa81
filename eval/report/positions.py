"""Acceptance by position in the round: how far a draft gets before the target says no."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from architectures.pages.blocks import Block, Figure, Section, Sentence, Table
from eval.pages.tables import by_draft
from eval.pages.verdict import with_interval
from eval.records.acceptance import Position
from eval.report_inputs.drafts import ScoredDraft, all_temperatures, plotted, primaries, scored_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def positions_section(drafts: Sequence[ScoredDraft]) -> Section:
    """A plot and a table for every temperature, at the largest lookahead."""
    blocks: list[Block] = [
        Sentence(
            "A round keeps position k only if it kept every position before it. The thin curve is what independent "
            "accepts with the draft's α would give; counts stand beside the rates."
        )
    ]
    temperatures = all_temperatures(drafts)
    blocks += [positions_figure(scored_at(plotted(drafts), temperature), temperature) for temperature in temperatures]
    blocks += [positions_table(scored_at(primaries(drafts), temperature), temperature) for temperature in temperatures]
    return Section("Acceptance by position in the round", blocks, name="positions")


def positions_of(draft: ScoredDraft, temperature: float) -> Sequence[Position]:
    """The positions at the largest lookahead."""
    return draft.row(temperature).lookahead[-1].positions


def positions_figure(drafts: Sequence[ScoredDraft], temperature: float) -> Figure:
    """Share of rounds that keep each position, measured and as independent accepts would have it."""

    def draw(axes: "Axes") -> None:
        from eval.pages.drawing import draw_curve, draw_points, whole_ticks

        for index, draft in enumerate(drafts):
            positions = positions_of(draft, temperature)
            x = [position.position for position in positions]
            draw_points(axes, x, [position.joint for position in positions], index, draft.label)
            alpha = draft.row(temperature).alpha.value
            draw_curve(axes, x, [alpha**k for k in x], index, f"{draft.label}, independent")
        whole_ticks(axes, [position.position for draft in drafts for position in positions_of(draft, temperature)])
        axes.set(xlabel="position in the round", ylabel="share of rounds that keep it", ylim=(0, None))

    told = "; ".join(
        f"{draft.label} "
        + ", ".join(f"{p.joint.value:.3f} at position {p.position}" for p in positions_of(draft, temperature))
        for draft in drafts
    )
    return Figure(
        name=f"positions-t{temperature:g}",
        alt=f"Share of rounds that keep each position at temperature {temperature:g}: {told}.",
        caption=f"Share of rounds that keep each position, temperature {temperature:g}",
        draw=draw,
    )


def positions_table(drafts: Sequence[ScoredDraft], temperature: float) -> Table:
    """Counts and rates of every position."""
    rows = [
        (
            draft.label,
            str(p.position),
            with_interval(p.joint),
            count_words(p.accepted, draft.row(temperature).lookahead[-1].rounds),
            with_interval(p.conditional),
            count_words(p.accepted, p.reached),
        )
        for draft in drafts
        for p in positions_of(draft, temperature)
    ]
    columns = ("draft", "position", "of all rounds", "rounds", "of those that came so far", "rounds")
    return by_draft(Table(columns, rows, f"Rounds that keep each position, temperature {temperature:g}"))


def count_words(count: float, total: float) -> str:
    """Counts of a rate: whole where no chance decided, expected values otherwise."""
    return " of ".join(f"{number:.1f}".removesuffix(".0") for number in (count, total))
