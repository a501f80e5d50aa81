"""What a field of scorecard.json may be: its form and its range."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from eval.acceptance.intervals import holds

ROUNDING = 1e-9
MOST = 10**15  # of anything


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, up to rounding; without low itself where it is open."""

    low: float
    high: float
    is_open: bool = False

    def has(self, value: float) -> bool:
        """Whether a number is in it."""
        if self.is_open and value <= self.low:
            return False
        return self.low - ROUNDING <= value <= self.high + ROUNDING


ANY, POSITIVE, NOT_NEGATIVE = Range(-MOST, MOST), Range(0, MOST, is_open=True), Range(0, MOST)
SHARE, GAIN, FROM_1 = Range(0, 1), Range(-1, 1), Range(1, MOST)


def is_number(value: Any) -> bool:
    """Whether it is a finite number, and not true or false."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def in_range(allowed: Range) -> Callable[[Any], bool]:
    """Whether it is a number of a range."""
    return lambda value: is_number(value) and allowed.has(value)


def whole_from(low: int, most: int = MOST) -> Callable[[Any], bool]:
    """Whether it is a whole number of a range."""
    return lambda value: is_number(value) and isinstance(value, int) and low <= value <= most


def is_interval(value: Any) -> bool:
    """Whether it is [low, high], or null where there is none."""
    return value is None or (
        isinstance(value, list) and len(value) == 2 and all(map(is_number, value)) and value[0] <= value[1]
    )


def estimate_in(allowed: Range, *, with_value: bool = False) -> Callable[[Any], bool]:
    """Whether it is {value, interval} of a range, the value in the interval; null where nothing was counted."""

    def fits(found: Any) -> bool:
        if not isinstance(found, dict) or not {"value", "interval"} <= found.keys():
            return False
        value, interval = found["value"], found["interval"]
        if value is None:
            return interval is None and not with_value
        if not is_number(value) or not is_interval(interval):
            return False
        return all(map(allowed.has, [value, *(interval or [])])) and holds(interval, value)

    return fits


def is_step(found: Any) -> bool:
    """Whether it is a step: median_ms within its interval and its percentiles."""
    if not isinstance(found, dict) or not all(is_number(found.get(name)) for name in ("median_ms", "p10_ms", "p90_ms")):
        return False
    median, interval = found["median_ms"], found.get("interval_ms")
    return (
        found["p10_ms"] > 0
        and is_interval(interval)
        and holds(interval, median)
        and holds([found["p10_ms"], found["p90_ms"]], median)
    )


KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "text": (lambda value: isinstance(value, str), "text"),
    "number": (is_number, "a number"),
    "positive": (in_range(POSITIVE), "a number > 0"),
    "not negative": (in_range(NOT_NEGATIVE), "a number >= 0"),
    "share": (in_range(SHARE), "a number from 0 to 1"),
    "confidence": (lambda value: is_number(value) and 0 < value < 1, "a number > 0 and < 1"),
    "count": (whole_from(1), "a whole number > 0"),
    "counted": (whole_from(0), "a whole number >= 0"),
    "resamples": (whole_from(1, 100_000), "a whole number > 0 and <= 100,000"),
    "numbers": (
        lambda value: isinstance(value, list) and all(map(in_range(NOT_NEGATIVE), value)),
        "a list of numbers >= 0",
    ),
    "list": (lambda value: isinstance(value, list) and value != [], "a list of at least one entry"),
    "object": (lambda value: isinstance(value, dict), "an object"),
    "rate": (estimate_in(SHARE), "{value, interval} from 0 to 1, the value in the interval"),
    "measured rate": (
        estimate_in(SHARE, with_value=True),
        "{value, interval} with a value from 0 to 1 in it",
    ),
    "gain": (estimate_in(GAIN), "{value, interval} from -1 to 1, the value in the interval"),
    "difference": (estimate_in(ANY), "{value, interval}, the value in the interval"),
    "tau": (estimate_in(FROM_1), "{value, interval} >= 1, the value in the interval"),
    "measured tau": (estimate_in(FROM_1, with_value=True), "{value, interval} with a value >= 1 in the interval"),
    "speed-up": (estimate_in(POSITIVE, with_value=True), "{value, interval} with a value > 0 in the interval"),
    "step": (is_step, "{median_ms, interval_ms, p10_ms, p90_ms} > 0, the median in the interval and the percentiles"),
}
