"""choice.json: everything that a choice found, as its page tells it. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from architectures.files.atomic import write_json
from architectures.shapes.shape import Shape
from distill.choose.shapes.candidates import Candidate
from distill.choose.shapes.left_out import LeftOut
from distill.choose.trainings.rungs import Rung
from eval.scorecard_schema import Provenance, ScoredLatency
from eval.speedup import Prospect

RECORD_NAME, SCHEMA = "choice.json", "widedraft.choice/1"


@dataclass(frozen=True)
class TimedCandidate:
    """A shape that was timed.

    Attributes:
        name: Of its folder.
        shape: What would be cut.
        parameters: Of it.
        prospect: What it could do at most, at the place that decides.
    """

    name: str
    shape: Shape
    parameters: int
    prospect: Prospect


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The file.

    Attributes:
        run_name: Of the recipe.
        candidates: All that were timed.
        timed: Their step times at every place; the first decides.
        left_out: Before any training.
        rungs: Rankings, one for each length of trainings, or one of acceptance that was given.
        winner: The name of the candidate whose recipe was written; None where none was.
        provenance: Of this process.
    """

    schema: Literal["widedraft.choice/1"] = SCHEMA
    run_name: str
    candidates: tuple[TimedCandidate, ...]
    timed: tuple[ScoredLatency, ...]
    left_out: tuple[LeftOut, ...]
    rungs: tuple[Rung, ...]
    winner: str | None
    provenance: Provenance


def timed_candidates(candidates: Sequence[Candidate], prospects: Mapping[str, Prospect]) -> tuple[TimedCandidate, ...]:
    return tuple(
        TimedCandidate(each.name, each.shape, each.shape.parameters(), prospects[each.name]) for each in candidates
    )


def write_choice(choice: Choice, folder: Path) -> None:
    """Write the file, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(TypeAdapter(Choice).dump_python(choice, mode="json"), folder / RECORD_NAME)
