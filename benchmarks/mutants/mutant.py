"""One rule of the source broken: where, how, and what became of it. No torch: both environments import this."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """A file with some lines replaced."""

    area: str
    file: str  # from the root of the repository
    line: int  # the first that differs, from 1
    operator: str  # of cosmic-ray
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def words(self) -> tuple[str, str, str]:
        """What it is called when lines above it come and go."""
        return self.file, stripped(self.before), stripped(self.after)

    def source(self, text: str) -> str:
        """The file broken.

        Raises:
            ValueError: If the lines are not there.
        """
        lines = text.splitlines(keepends=True)
        first, last = self.line - 1, self.line - 1 + len(self.before)
        if tuple(line.rstrip("\n") for line in lines[first:last]) != self.before:
            raise ValueError(f"{self.file}:{self.line}: the source is not what the mutant was drawn from. Draw again.")
        return "".join([*lines[:first], *(f"{line}\n" for line in self.after), *lines[last:]])


def stripped(lines: Iterable[str]) -> str:
    """Lines in one, without their indents."""
    return " ".join(line.strip() for line in lines)


def write_mutants(mutants: Iterable[Mutant], path: Path) -> None:
    """One a line, in the order in which they are to be tried."""
    path.write_text("".join(json.dumps(asdict(mutant)) + "\n" for mutant in mutants), encoding="utf-8")


def read_mutants(path: Path) -> list[Mutant]:
    """What write_mutants wrote."""
    return [mutant_of(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def mutant_of(row: dict[str, Any]) -> Mutant:
    return Mutant(**row | {"before": tuple(row["before"]), "after": tuple(row["after"])})
