"""benchmarks/results/memory.json: peaks of stages, beside what `check` says of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from architectures.files.disk import size
from architectures.files.typed_file import read_typed

FILE = Path(__file__).parents[1] / "results" / "memory.json"
COMMAND = "python -m benchmarks.memory measure"


@dataclass(frozen=True)
class Peak:
    """A stage as it was measured.

    Attributes:
        model: Of the target.
        stage: As `check` calls it.
        how: What sets it apart.
        processes: That shared it.
        told_bytes: Of one process, by `check` when it was measured.
        measured_bytes: Of the process that took most: its peak less what it had with all libraries loaded.
    """

    model: str
    stage: str
    how: str
    processes: int
    told_bytes: int
    measured_bytes: int

    @property
    def ratio(self) -> float:
        """What is told over what was measured."""
        return self.told_bytes / self.measured_bytes


@dataclass(frozen=True)
class Peaks:
    """All that was measured."""

    device: str
    measured: str
    commit: str | None
    rows: tuple[Peak, ...]


def read_peaks(file: Path = FILE) -> Peaks | None:
    """What is on the disk; None where nobody has measured."""
    if not file.is_file():
        return None
    return read_typed(file, TypeAdapter(Peaks), f"Measure again: {COMMAND}.")


def peak_rows(peaks: Peaks) -> Iterator[Sequence[str]]:
    """Rows of a table."""
    for row in peaks.rows:
        stage = f"{row.stage}, {row.how}" if row.how else row.stage
        told, measured = size(row.told_bytes).strip(), size(row.measured_bytes).strip()
        yield row.model, stage, str(row.processes), told, measured, f"{row.ratio:.2f}"
