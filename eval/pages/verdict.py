"""Old names of eval.scorecard_tables; go with their last importer."""

from typing import Literal

from eval.acceptance.estimates import Estimate
from eval.scorecard_schema import HasInterval
from eval.scorecard_tables import with_bounds

Judgement = Literal["faster", "slower", "not decided"]


def with_interval(estimate: HasInterval, *, times: bool = False) -> str:
    return figure_words(estimate.value, estimate.interval, times=times)


def figure_words(value: float | None, interval: tuple[float, float] | None, *, times: bool = False) -> str:
    return with_bounds(value, interval, 2, "x") if times else with_bounds(value, interval)


def judgement(speedup: HasInterval) -> Judgement:
    """A direction only if the whole interval lies there."""
    if speedup.interval is None:
        return "not decided"
    low, high = speedup.interval
    return "faster" if low > 1 else "slower" if high < 1 else "not decided"


def decision(speedup: Estimate, *, too_few: str) -> str:
    return judgement(speedup) if speedup.interval else f"not decided: {too_few}"


def too_few_words(count: int, singular: str, plural: str, least: int) -> str:
    return f"{count} {singular if count == 1 else plural} give no interval: {least} are the least"
