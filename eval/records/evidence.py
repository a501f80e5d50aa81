"""What step times are checked against; eval.scorecard_tables.timing_warnings reports what is wrong."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ThreadStep:
    """Mean milliseconds that the target's step of one token took with so many threads, in turns with other numbers."""

    threads: int
    ms: float

    @property
    def words(self) -> str:
        return f"{threads_words(self.threads)}: {ms_words(self.ms)}"


@dataclass(frozen=True, kw_only=True)
class StepEvidence:
    """Taken while steps were timed, and right behind.

    Attributes:
        threads: With which steps were timed.
        by_threads: The target's step with fewer threads and with those; empty on a GPU, and where there was one thread.
        refused: Share of the processor time asked for that this process waited for; null where nobody counts it.
        others: Cores that other processes kept busy, on average; null where nobody counts it.
        load_average: Of the last minute, when timing began.
    """

    threads: int
    by_threads: tuple[ThreadStep, ...]
    refused: float | None
    others: float | None
    load_average: float


def threads_words(count: int) -> str:
    return f"{count} thread{'' if count == 1 else 's'}"


def ms_words(milliseconds: float) -> str:
    """Three digits that count: 0.0123 ms, 1.50 ms, 105 ms."""
    return f"{milliseconds:.3g} ms"
