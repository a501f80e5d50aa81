"""What acceptance is worth with given step times. Pure.

A batch ends a round when all its rows have. Its draft catches up if any row kept everything, which happens to a share
of 1 - (1 - f)^b of the rounds of b rows, if rows are independent and each keeps everything in a share f.
"""

from collections.abc import Sequence
from typing import Protocol

from eval.acceptance.speedup import StepTimes, best_lookahead, predicted_speedup


class HasValue(Protocol):
    """An estimate, whatever else it tells."""

    @property
    def value(self) -> float: ...


class RoundsAt(Protocol):
    """Rounds of a draft at one lookahead, as eval.records.acceptance.Rounds has them."""

    @property
    def lookahead(self) -> int: ...

    @property
    def tau(self) -> HasValue: ...

    @property
    def full_rate(self) -> float: ...


def promise(rounds: Sequence[RoundsAt], steps: StepTimes, *, batch: int = 1) -> tuple[int, float]:
    """The lookahead that promises most, and what.

    Args:
        rounds: Of one draft at one temperature.
        steps: Of it and its target, at this batch; lookaheads whose verification was not timed are passed over.
        batch: Rows.
    """
    speedups = {
        entry.lookahead: predicted_speedup(entry.tau.value, any_full_rate(entry, batch), entry.lookahead, steps)
        for entry in rounds
        if entry.lookahead in steps.verify_s
    }
    lookahead = best_lookahead(speedups)
    return lookahead, speedups[lookahead]


def any_full_rate(rounds: RoundsAt, batch: int) -> float:
    """Share of a batch's rounds in which any row kept everything."""
    return 1 - (1 - rounds.full_rate) ** batch
