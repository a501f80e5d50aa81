"""benchmarks/results/scale.json: what one process and two were measured at, beside what was predicted of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from architectures.files.typed_file import read_typed
from benchmarks.scale.predicted import Scaled
from distill.expected_time.stage_time import StageTime

FILE = Path(__file__).parents[1] / "results" / "scale.json"
COMMAND = "python -m benchmarks.scale measure"
ANSWERS, TRAINING = "answers", "training"  # as stages are called


@dataclass(frozen=True)
class Counted:
    """A stage as it was measured.

    Attributes:
        stage: As `check` calls it.
        processes: That shared it.
        threads: Of each.
        units: Answers or batches.
        tokens: Written or read.
        seconds: Without starting, loading and saving.
    """

    stage: str
    processes: int
    threads: int
    units: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Measured:
    """All that was measured in one call."""

    device: str
    measured: str
    commit: str | None
    rows: tuple[Counted, ...]

    def row(self, stage: str, processes: int, threads: int) -> Counted:
        """The measurement of a setting."""
        asked = (stage, processes, threads)
        return next(row for row in self.rows if (row.stage, row.processes, row.threads) == asked)

    def efficiency(self, stage: str) -> float:
        """Of two processes of a thread each: 1 where they take half the time of one."""
        return self.row(stage, 1, 1).seconds / (2 * self.row(stage, 2, 1).seconds)


def read_measured(file: Path = FILE) -> Measured | None:
    """What is on the disk; None where nobody has measured."""
    if not file.is_file():
        return None
    return read_typed(file, TypeAdapter(Measured), f"Measure again: {COMMAND}.")


def compared(measured: Measured, scaled: Scaled) -> Iterator[Sequence[str]]:
    """Rows of a table: every measurement beside its prediction, and by how much that was wrong.

    Args:
        measured: On a processor.
        scaled: The same work, predicted from the figures of that processor, all of its threads in one process.
    """
    for row in measured.rows:
        [time] = [each for each in scaled.times if each.name == row.stage]
        predicted_s, basis = predicted(row, time, measured)
        told = "" if predicted_s is None else f"{predicted_s:.0f}"
        ratio = "" if predicted_s is None else f"{row.seconds / predicted_s:.2f}"
        yield (
            row.stage, f"{row.processes} of {row.threads}", f"{row.units:,}", f"{row.tokens:,}", f"{row.seconds:.0f}",
            f"{row.tokens / row.seconds:,.0f}", told, ratio, basis,
        )  # fmt: skip


def predicted(row: Counted, time: StageTime, measured: Measured) -> tuple[float | None, str]:
    """Seconds, and what they are derived from; None of the one that another is derived from."""
    if row.processes > 1:
        one, alone, shared = measured.row(row.stage, 1, row.threads), time.on(1), time.on(row.processes)
        assert alone is not None, row.stage
        assert shared is not None, row.stage
        return one.seconds * shared / alone, "one process of as many threads, and how the work is cut"
    if row.threads > 1:
        return time.seconds, "what `check` says of this device"
    return None, "basis of the next"
