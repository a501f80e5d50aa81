"""The file of one finished cell, and those of a folder, which must be of the same inputs to be compared. No torch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import TypeAdapter

from architectures.errors import UserError
from architectures.files.atomic import write_text
from architectures.files.typed_file import read_typed
from benchmarks.minutes.cells import Cell

Schema = Literal["widedraft.minutes/1"]
[SCHEMA] = get_args(Schema)
INPUTS_NAME = "inputs.json"  # beside the cells: what the answers and the cache took


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One training.

    Attributes:
        budget_s: Seconds it was given.
        seconds: It took, from its first batch to the end of its last step.
        trainings: 2 where the first missed its minutes by much and was made again; the figures are the last one's.
        expected_step_s: Seconds a step, from a few steps before.
        steps: Of the optimiser.
        epochs: Readings of all answers.
        answers: There are.
        answer_tokens_seen: Of the answers, each as often as it was read.
    """

    budget_s: float
    seconds: float
    trainings: int
    expected_step_s: float
    steps: int
    epochs: float
    answers: int
    answer_tokens_seen: int

    @property
    def missed_by(self) -> float:
        """How much longer it took than it was given, as a share; below 0 if it was shorter."""
        return self.seconds / self.budget_s - 1


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where a cell was made."""

    processor: str
    torch: str
    threads: int
    precision: str
    eval_dtype: str


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A cell and what came of it.

    Attributes:
        cell: What was trained.
        inputs: Fingerprints of what decided the figures beside it.
        machine: Where.
        phases: The training.
        acceptance: As in a scorecard, of every set of answers (`set`) and temperature; what is read of it.
        latency: As in a scorecard, with this draft alone; with `commit`, taken by that code, from the same shape.
        wall_s: Everything together: pruning, the warm-up, loading, scoring.
        commit: Of this code.
        created: When.
    """

    schema: Schema
    cell: Cell
    inputs: dict[str, str]
    machine: Machine
    phases: tuple[Phase, ...]
    acceptance: list[dict[str, Any]]
    latency: dict[str, Any]
    wall_s: float
    commit: str | None
    created: str

    @property
    def train_s(self) -> float:
        """Seconds of all phases."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def missed_by(self) -> float:
        """As of a phase."""
        return self.train_s / sum(phase.budget_s for phase in self.phases) - 1


FILE = TypeAdapter(Finished)
REMEDY = "Delete it, and the bench makes it again."


def cell_path(folder: Path, cell: Cell) -> Path:
    """Where a cell is kept."""
    return folder / f"{cell.name}.json"


def write_finished(finished: Finished, folder: Path) -> None:
    """Write a cell's file, whole or not at all."""
    write_text(json.dumps(asdict(finished), ensure_ascii=False) + "\n", cell_path(folder, finished.cell))


def read_finished(folder: Path) -> list[Finished]:
    """Every cell of a folder; of one that is not there, none.

    Raises:
        UserError: If a file is not a cell's, or is another's than its name says.
    """
    results = []
    for path in sorted(folder.glob("*.json")):
        if path.name == INPUTS_NAME:
            continue
        result = read_typed(path, FILE, REMEDY)
        if path != cell_path(folder, result.cell):
            raise UserError(f"{path}: holds {result.cell.name}. {REMEDY}")
        results.append(result)
    return results


def refuse_others(results: Sequence[Finished], inputs: Mapping[str, str], folder: Path) -> None:
    """Raise UserError if a cell was made from other inputs than these: it has no place in this comparison."""
    for result in results:
        changed = sorted(
            name for name in inputs.keys() | result.inputs.keys() if inputs.get(name) != result.inputs.get(name)
        )
        if changed:
            raise UserError(
                f"{cell_path(folder, result.cell)}: was made from other {', '.join(changed)} than this bench has now. "
                "Give another --out, or delete the folder."
            )
