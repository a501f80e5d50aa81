"""Numbers of records, each with its range, and estimates of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import AfterValidator, Field, FiniteFloat

from eval.acceptance.estimates import Estimate
from eval.acceptance.intervals import holds

ROUNDING = 1e-9
MOST = 10**15  # of anything

Item = TypeVar("Item")
Some = Annotated[tuple[Item, ...], Field(min_length=1)]
Count = Annotated[int, Field(ge=1, le=MOST)]
Counted = Annotated[int, Field(ge=0, le=MOST)]
Positive = Annotated[FiniteFloat, Field(gt=0, le=MOST)]
NotNegative = Annotated[FiniteFloat, Field(ge=0, le=MOST)]
Share = Annotated[FiniteFloat, Field(ge=-ROUNDING, le=1 + ROUNDING)]
Confidence = Annotated[float, Field(gt=0, lt=1)]


class HasInterval(Protocol):
    """A value with its interval; null where nothing was counted, or nothing tells how sure it is."""

    @property
    def value(self) -> float | None: ...

    @property
    def interval(self) -> tuple[float, float] | None: ...


@dataclass(frozen=True)
class Ratio:
    """A ratio of counts with its interval; both null where nothing was counted."""

    value: FiniteFloat | None
    interval: tuple[FiniteFloat, FiniteFloat] | None

    def __post_init__(self) -> None:
        if not (self.interval is None if self.value is None else holds(self.interval, self.value)):
            raise ValueError(f"must lie in its interval, got {self.value} and {self.interval}")


@dataclass(frozen=True)
class Mean(Estimate):
    """A mean over tokens beside its sum."""

    sum: NotNegative
    tokens: Positive


Value = TypeVar("Value", Estimate, Ratio, Mean)


def within(low: float, high: float = MOST) -> AfterValidator:
    """An estimate of which no number lies outside, up to rounding."""

    def checked(estimate: Value) -> Value:
        numbers = [] if estimate.value is None else [estimate.value, *(estimate.interval or ())]
        if not all(low - ROUNDING <= number <= high + ROUNDING for number in numbers):
            raise ValueError(f"must lie between {low:g} and {high:g}, got {estimate.value} and {estimate.interval}")
        return estimate

    return AfterValidator(checked)


Rate = Annotated[Estimate, within(0, 1)]
CountedRate = Annotated[Ratio, within(0, 1)]
MeanRate = Annotated[Mean, within(0, 1)]
Gain = Annotated[Estimate, within(-1, 1)]
Tau = Annotated[Estimate, within(1)]
CountedTau = Annotated[Ratio, within(1)]
SpeedUp = Annotated[Estimate, within(1 / MOST)]


def require_equal(part: str, actual: Any, due: Any) -> None:
    """Raise ValueError where a part of a record is not what the rest of it says."""
    if actual != due:
        raise ValueError(f"{part} must be {due}, as the rest of the file has it, got {actual}")


def only(rows: Sequence[Item], is_it: Callable[[Item], bool]) -> Item:
    """The single row that is meant."""
    [row] = filter(is_it, rows)
    return row
