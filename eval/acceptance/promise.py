"""What the acceptance that a scorecard holds is worth with given step times. Pure.

A batch ends a round when all its rows have. Its draft catches up if any row kept everything, which happens to a share
of 1 - (1 - f)^b of the rounds of b rows, if rows are independent and each keeps everything in a share f.
"""

from typing import Any

from eval.acceptance.speedup import StepTimes, best_lookahead, predicted_speedup

Record = dict[str, Any]


def promise(row: Record, steps: StepTimes, *, batch: int = 1) -> tuple[int, float]:
    """The lookahead that promises most, and what.

    Args:
        row: Acceptance of one draft at one temperature.
        steps: Of it and its target, at this batch; lookaheads whose verification was not timed are passed over.
        batch: Rows.
    """
    found = {
        entry["lookahead"]: predicted_speedup(
            entry["tau"]["value"], any_full_rate(entry, batch), entry["lookahead"], steps
        )
        for entry in row["lookahead"]
        if entry["lookahead"] in steps.verify_s
    }
    lookahead = best_lookahead(found)
    return lookahead, found[lookahead]


def any_full_rate(entry: Record, batch: int) -> float:
    """Share of a batch's rounds in which any row kept everything."""
    return 1 - (1 - full_rate(entry)) ** batch


def full_rate(entry: Record) -> float:
    """The share of rounds that kept everything."""
    return entry["fully_accepted"] / entry["rounds"]
