"""Plots of a stream: acceptance against records, and tokens by how common they are."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from architectures.pages.blocks import MOST_LETTERS, Figure, folded
from eval.acceptance.estimates import Resampling
from eval.shift.curves import Measure, Records, alpha_columns, by_source, curve, stretches, tau_columns
from eval.shift.reading import Arm
from eval.shift.tokens import TokenScore

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_STRETCHES = 12  # that a plot marks; of more, sources are mixed
MOST_SOURCES = 8  # that have plots of their own
MEASURES: dict[str, tuple[str, Measure]] = {
    "alpha": ("acceptance (alpha)", alpha_columns),
    "tau": ("tokens a round (tau)", tau_columns),
}
WIDTH = 6.5


def stream_figures(arms: Sequence[Arm], window: int, resampling: Resampling) -> list[Figure]:
    """Alpha and tau against records: of all requests, and where sources are mixed of each of the commonest too."""
    whole = [figure(name, "all requests", arms, window, resampling) for name in MEASURES]
    if len(stretches(arms[0].records)) <= MOST_STRETCHES:
        return whole
    sources = by_source(arms[0].records)
    shown = sorted(sources, key=lambda source: -len(sources[source]))[:MOST_SOURCES]
    return whole + [
        replace(
            figure(name, source, [of_source(arm, source) for arm in arms], window, resampling), name=f"{name}-{number}"
        )
        for number, source in enumerate(shown, start=1)
        for name in MEASURES
    ]


def of_source(arm: Arm, source: str) -> Arm:
    """The requests of one source alone."""
    return Arm(arm.name, tuple(record for record in arm.records if record.source == source))


def figure(name: str, whose: str, arms: Sequence[Arm], window: int, resampling: Resampling) -> Figure:
    """One measure of every arm against the requests of the stream."""
    words, measure = MEASURES[name]
    caption = (
        f"{words.capitalize()} of {whose}, in windows of {window} requests, with "
        f"{resampling.confidence:.0%} intervals (bootstrap over requests)"
    )
    alt = f"{words} against records of the stream, {whose}, a line for each of {', '.join(arm.name for arm in arms)}"
    draw = partial(draw_arms, arms=arms, measure=measure, window=window, resampling=resampling, words=words)
    return Figure(name, alt, caption, draw, width=WIDTH)


def draw_arms(
    axes: "Axes", *, arms: Sequence[Arm], measure: Measure, window: int, resampling: Resampling, words: str
) -> None:
    """A line in a band for each arm; no window reaches from one stretch into the next where those are marked."""
    from eval.pages.drawing import draw_band

    parts_of = stretches if 1 < len(stretches(arms[0].records)) <= MOST_STRETCHES else whole_stream
    for index, arm in enumerate(arms):
        for number, part in enumerate(parts_of(arm.records)):
            points = curve(part, measure, window, resampling)
            x, means = [point.request for point in points], [point.mean for point in points]
            draw_band(axes, x, means, index, None if number else arm.name)
    axes.set(xlabel="request", ylabel=words)
    if parts_of is stretches:
        mark_stretches(axes, parts_of(arms[0].records))


def whole_stream(records: Records) -> list[Records]:
    """All requests as one part."""
    return [records]


def mark_stretches(axes: "Axes", parts: Sequence[Records]) -> None:
    """A line where each source begins, with its name above the plot."""
    from eval.pages.drawing import SOFT

    for part in parts:
        axes.axvline(part[0].request, color=SOFT, linewidth=1, linestyle=":")
        axes.annotate(
            folded(part[0].source, MOST_LETTERS),
            (part[0].request, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(2, 2),
            textcoords="offset points",
            color=SOFT,
        )


Share = Callable[[TokenScore], float | None]
SHARES: dict[str, Share] = {"precision": lambda score: score.precision, "recall": lambda score: score.recall}


def token_figures(scores: Sequence[tuple[str, Sequence[TokenScore]]]) -> list[Figure]:
    """Precision and recall of the commonest tokens, those most often first, of every arm."""
    names = ", ".join(name for name, _ in scores)
    return [
        Figure(
            name,
            f"{name} of the {len(scores[0][1])} commonest tokens, the commonest on the left, points for {names}",
            f"{name.capitalize()} of the {len(scores[0][1])} commonest tokens of the answers, the commonest first",
            partial(draw_tokens, scores=scores, share=share, words=name),
            width=WIDTH,
        )
        for name, share in SHARES.items()
    ]


def draw_tokens(axes: "Axes", *, scores: Sequence[tuple[str, Sequence[TokenScore]]], share: Share, words: str) -> None:
    """A point for each token and arm; none where nothing was counted."""
    from eval.pages.drawing import draw_separate

    for index, (name, of_arm) in enumerate(scores):
        shares = [(place, share(score)) for place, score in enumerate(of_arm, start=1)]
        draw_separate(axes, [(place, value) for place, value in shares if value is not None], index, name)
    axes.set(xlabel="token, by how common it is", ylabel=words, ylim=(-0.03, 1.03))
