"""Step times, and how they grow with the number of layers where several drafts have different ones."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from architectures.pages.blocks import Absent, Block, Figure, Section, Table
from architectures.pages.counts import number_of
from eval.pages.scorecard_page import step_words
from eval.records.steps import StepTime
from eval.report.batches import batches_blocks, undistilled_batches
from eval.report.summary import undistilled
from eval.report_inputs.cards import Card
from eval.report_inputs.drafts import ScoredDraft, twins_apart
from eval.report_inputs.grid_file import Grids

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEP_COLUMNS = ("step", "median", "10 %", "90 %")


def depth_section(drafts: Sequence[ScoredDraft], cards: Sequence[Card], grids: Grids) -> Section:
    """Plot where depths differ, and every step; and what steps at other batches promise."""
    shown, twins = twins_apart(drafts)
    blocks: list[Block] = [depth_block(shown)]
    blocks += [steps_table(card, [draft for draft in shown if draft.card is card]) for card in cards]
    blocks += batches_blocks(shown, grids)
    if twins:
        blocks.append(undistilled(draft_steps_table(twins), *undistilled_batches(twins, grids)))
    return Section("Step times, and latency against depth", blocks, name="latency")


def depth_block(drafts: Sequence[ScoredDraft]) -> Block:
    """The plot, or why there is none."""
    depths = sorted({draft.model.layers for draft in drafts})
    if len(depths) == 1:
        return Absent(
            f"Latency against depth: every draft has {number_of(depths[0], 'layer')}. Name runs of other depths beside "
            "it."
        )
    if len({draft.card.record.machine for draft in drafts}) > 1:
        return Absent("Latency against depth: the drafts were timed on different machines.")
    return depth_figure(drafts)


def depth_figure(drafts: Sequence[ScoredDraft]) -> Figure:
    """A draft's step by its layers."""

    def draw(axes: "Axes") -> None:
        from eval.pages.drawing import draw_measured, whole_ticks

        for index, draft in enumerate(drafts):
            draw_measured(axes, draft.model.layers, draft.steps.one_token.p50_ms, index, draft.label)
        whole_ticks(axes, [draft.model.layers for draft in drafts])
        axes.set(xlabel="layers of the draft", ylabel="milliseconds a token", ylim=(0, None))

    told = "; ".join(
        f"{draft.label} {number_of(draft.model.layers, 'layer')}, {draft.model.hidden} wide, "
        f"{step_words(draft.steps.one_token)} ms"
        for draft in drafts
    )
    return Figure(
        name="depth",
        alt=f"A draft's step by its number of layers: {told}.",
        caption="A draft's step against its depth, within a chain of such steps",
        draw=draw,
    )


def steps_table(card: Card, drafts: Sequence[ScoredDraft]) -> Table:
    """Every kind of step of one scorecard."""
    latency = card.record.latency
    target_ms = latency.target.median_ms
    steps = [("target, 1 token", latency.target)]
    for draft in drafts:
        steps += [
            (f"{draft.label}, 1 token", draft.steps.one_token),
            (f"{draft.label}, 2 tokens", draft.steps.two_tokens),
        ]
    steps += [(f"target verifies {step.lookahead + 1} tokens", step) for step in latency.verify]
    rows = [(*step_cells(name, step), f"{step.median_ms / target_ms:.3f}") for name, step in steps]
    caption = (
        f"Step times of {card.name} in milliseconds: batch 1, {latency.context_tokens} tokens of context, "
        f"{number_of(latency.repeats, 'repetition')}"
    )
    return Table((*STEP_COLUMNS, "of a target step"), rows, caption)


def draft_steps_table(drafts: Sequence[ScoredDraft]) -> Table:
    """The steps of some drafts, of whatever scorecards."""
    rows = [
        step_cells(f"{draft.label}, {words}", step)
        for draft in drafts
        for words, step in (("1 token", draft.steps.one_token), ("2 tokens", draft.steps.two_tokens))
    ]
    return Table(STEP_COLUMNS, rows, "Step times of undistilled drafts in milliseconds")


def step_cells(name: str, step: StepTime) -> tuple[str, ...]:
    return name, step_words(step), f"{step.p10_ms.value:.2f}", f"{step.p90_ms.value:.2f}"
