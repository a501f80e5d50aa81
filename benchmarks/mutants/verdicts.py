"""What became of a mutant."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.mutants.mutant import Mutant, mutant_of
from benchmarks.mutants.trying import Outcome

Verdict = Literal["killed", "survived", "equivalent", "unrunnable"]
COUNTED = ("killed", "survived", "equivalent")
TEST_FAILED, TIME_RAN_OUT = 1, -1
EQUIVALENTS = Path(__file__).with_name("equivalents.jsonl")


@dataclass(frozen=True)
class Tried:
    """A mutant, and which test noticed or why none can."""

    mutant: Mutant
    verdict: Verdict
    by: str  # the test that failed, or the reason why it changes nothing
    cpu_s: float


def tried(mutant: Mutant, outcome: Outcome, reason: str | None) -> Tried:
    """What the tests say of it; a program that cannot even be imported is not one that a test has noticed."""
    cpu_s = round(outcome.cpu_s, 1)
    if outcome.code == 0:
        return Tried(mutant, "survived" if reason is None else "equivalent", reason or "", cpu_s)
    if outcome.code == TIME_RAN_OUT:
        return Tried(mutant, "killed", "it never ends", cpu_s)
    return Tried(mutant, "killed" if outcome.code == TEST_FAILED else "unrunnable", outcome.failed, cpu_s)


def read_tried(path: Path) -> list[Tried]:
    """What a run wrote, area by area."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return sorted(
        map(tried_of, rows), key=lambda attempt: (attempt.mutant.area, attempt.mutant.file, attempt.mutant.line)
    )


def tried_of(row: dict[str, Any]) -> Tried:
    return Tried(**row | {"mutant": mutant_of(row["mutant"])})


def read_reasons() -> dict[tuple[str, str, str], str]:
    """Why a mutant changes nothing, by its file and its words before and after."""
    rows = [json.loads(line) for line in EQUIVALENTS.read_text(encoding="utf-8").splitlines()]
    return {(row["file"], row["before"], row["after"]): row["reason"] for row in rows}
