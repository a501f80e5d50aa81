"""Saved checkpoints of a training: acceptance and predicted speed against the tokens they were trained on."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from architectures.pages.blocks import Absent, Block, Figure, Section, Sentence, Table
from eval.pages.verdict import with_interval
from eval.report_inputs.cards import Card
from eval.training_curve.curves import Curve
from eval.training_curve.page import COLUMNS, best_sentence, point_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Named = tuple[str, Curve]  # of which run


def training_section(cards: Sequence[Card]) -> Section:
    """Plots and tables of every temperature at which checkpoints were scored."""
    named = [(card.name, curve) for card in cards for curve in card.curves or ()]
    lacking = [card.name for card in cards if card.curves is None]
    blocks: list[Block] = []
    for temperature in sorted({curve.temperature for _, curve in named}):
        shown = [named_curve for named_curve in named if named_curve[1].temperature == temperature]
        blocks += [tau_figure(shown, temperature), speed_figure(shown, temperature)]
        for name, curve in shown:
            caption = f"{name}, temperature {temperature:g}, lookahead {curve.lookahead}"
            blocks += [Table(COLUMNS, point_rows(curve), caption), Sentence(best_sentence(curve))]
    if lacking:
        how = "`widedraft eval RECIPE --checkpoints` scores them."  # whoever reads the page has folders of their own
        blocks.append(Absent(f"Checkpoints of {', '.join(lacking)}: {how}"))
    return Section("Checkpoints against tokens trained", blocks, name="training")


def tau_figure(named: Sequence[Named], temperature: float) -> Figure:
    """Tokens per round; the best checkpoint is ringed."""

    def draw(axes: "Axes") -> None:
        from eval.pages.drawing import draw_points, draw_ring

        for index, (name, curve) in enumerate(named):
            estimates = [point.tau for point in curve.points]
            draw_points(axes, tokens(curve), estimates, index, name)
            draw_ring(axes, *at_best(curve, [point.tau.value for point in curve.points]))
        axes.set(xlabel="tokens trained", ylabel="tokens per round (τ)")

    told = "; ".join(
        f"{name} " + ", ".join(f"{with_interval(point.tau)} after {point.tokens:,} tokens" for point in curve.points)
        for name, curve in named
    )
    return Figure(
        name=f"checkpoints-tau-t{temperature:g}",
        alt=f"Tokens per round of saved checkpoints at temperature {temperature:g}: {told}.",
        caption=f"Tokens per round of saved checkpoints, temperature {temperature:g}; the best is ringed",
        draw=draw,
    )


def speed_figure(named: Sequence[Named], temperature: float) -> Figure:
    """Predicted speed; the best checkpoint is ringed."""

    def draw(axes: "Axes") -> None:
        from eval.pages.drawing import draw_parity_line, draw_predicted, draw_ring

        for index, (name, curve) in enumerate(named):
            speeds = [point.predicted for point in curve.points]
            draw_predicted(axes, tokens(curve), speeds, index, f"{name}, predicted")
            draw_ring(axes, *at_best(curve, speeds))
        draw_parity_line(axes)
        axes.set(xlabel="tokens trained", ylabel="times the target alone")

    told = "; ".join(
        f"{name} " + ", ".join(f"{point.predicted:.2f} after {point.tokens:,} tokens" for point in curve.points)
        for name, curve in named
    )
    return Figure(
        name=f"checkpoints-speed-t{temperature:g}",
        alt=f"Predicted speed of saved checkpoints at temperature {temperature:g}, 1 being the target alone: {told}.",
        caption=f"Predicted speed of saved checkpoints, temperature {temperature:g}; the best is ringed",
        draw=draw,
    )


def tokens(curve: Curve) -> list[int]:
    """Tokens each checkpoint was trained on."""
    return [point.tokens for point in curve.points]


def at_best(curve: Curve, values: Sequence[float]) -> tuple[int, float]:
    """Tokens and value of the best checkpoint."""
    [index] = [index for index, point in enumerate(curve.points) if point.checkpoint == curve.best]
    return curve.points[index].tokens, values[index]
