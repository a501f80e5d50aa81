"""One measurement of a stage, whose failing leaves the others to be made."""

from collections.abc import Callable, Iterable, Iterator

import torch

from benchmarks.gpu.memory import free_memory
from benchmarks.gpu.stage import Row, SkippedError
from eval.models.loading import one_line


def attempt(cell: Row, measure: Callable[[], Row]) -> Row:
    """What was to be measured and what came of it: a measurement, why it was left out, or one line of how it failed."""
    [row] = attempt_rows(cell, lambda: [cell | measure()])
    return row


def attempt_rows(cell: Row, measure: Callable[[], Iterable[Row]]) -> Iterator[Row]:
    """The rows of a measurement, as they come; where it ends early, then one of the cell that says why."""
    try:
        yield from measure()
        outcome = None
    except SkippedError as error:
        outcome = {"skipped": str(error)}
    except torch.cuda.OutOfMemoryError as error:
        outcome = {"skipped": one_line(error)}
    except Exception as error:  # whatever it is, the other measurements are worth having
        outcome = {"failed": one_line(error)}
    free_memory()  # behind the except clauses, whose error holds on to all that was computed
    if outcome is not None:
        yield cell | outcome
