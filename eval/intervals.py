"""The one rule of a value with its interval, wherever one is read from a file: the interval holds the value."""

SLACK = 1e-9  # of the value: sums taken in another order differ by less


def holds(interval: tuple[float, float] | list[float] | None, value: float) -> bool:
    """Whether low <= value <= high, up to rounding; without an interval there is nothing to hold."""
    if interval is None:
        return True
    low, high = interval
    slack = SLACK * max(1.0, abs(value))
    return low - slack <= value <= high + slack
