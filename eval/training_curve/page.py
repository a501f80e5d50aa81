"""Curves as tables and sentences. Pure."""

from architectures.pages.blocks import Section, Sentence, Table
from eval.scorecard_tables import interval as with_interval
from eval.training_curve.curves import Curve, Curves, Point

COLUMNS = ("checkpoint", "batches", "tokens", "α", "τ", "behind the best", "predicted speed")


def curves_page(curves: Curves) -> Section:
    return Section("Saved checkpoints on the answers of this scorecard", list(map(curve_section, curves.curves)))


def curve_section(curve: Curve) -> Section:
    """A table for one temperature, and what it says."""
    title = f"Temperature {curve.temperature:g}, lookahead {curve.lookahead}"
    return Section(title, [Table(COLUMNS, point_rows(curve)), Sentence(best_sentence(curve))])


def point_rows(curve: Curve) -> list[tuple[str, ...]]:
    return [
        (
            f"{point.checkpoint} (best)" if point.checkpoint == curve.best else point.checkpoint,
            f"{point.batches:,}",
            f"{point.tokens:,}",
            with_interval(point.alpha),
            with_interval(point.tau),
            "–" if point.behind is None else with_interval(point.behind),
            f"{point.predicted:.3f}x",
        )
        for point in curve.points
    ]


def best_sentence(curve: Curve) -> str:
    """Which is best, and which are not surely behind it."""
    close = [point.checkpoint for point in curve.points if may_be_best(point)]
    told = f"Best at temperature {curve.temperature:g}: {curve.best}"
    if not close:
        return f"{told}; every other is behind it."
    return f"{told}, which is not decided against {', '.join(close)}."


def may_be_best(point: Point) -> bool:
    """Whether a checkpoint other than the best is not surely behind it in tau."""
    return point.behind is not None and (point.behind.interval is None or point.behind.interval[0] <= 0)
