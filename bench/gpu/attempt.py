"""One measurement of a stage, whose failing leaves the others to be made."""

from collections.abc import Callable

import torch

from bench.gpu.memory import free_memory
from bench.gpu.stage import Row

MOST_CHARS = 300


def attempt(cell: Row, measure: Callable[[], Row]) -> Row:
    """What was to be measured and what came of it: a measurement, why it was left out, or one line of how it failed."""
    try:
        return cell | measure()
    except torch.cuda.OutOfMemoryError as error:
        outcome = {"skipped": one_line(error)}
    except Exception as error:  # whatever it is, the other measurements are worth having
        outcome = {"failed": one_line(error)}
    free_memory()  # behind the except clauses, whose error holds on to all that was computed
    return cell | outcome


def one_line(error: Exception) -> str:
    """An error's kind and the beginning of what it says."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:MOST_CHARS]
