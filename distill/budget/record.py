"""The file of measured trainings that a law is fitted to: `python -m benchmarks.budget` writes, `choose` reads it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, TypeAdapter

from architectures.errors import UserError
from architectures.files.atomic import write_text
from architectures.files.typed_file import read_typed
from distill.budget.law import LEAST_CELLS, Budget

Schema = Literal["widedraft.budget/1"]
[SCHEMA] = get_args(Schema)
REMEDY = "Make it anew with `python -m benchmarks.budget` in a checkout."
Positive = Annotated[float, Field(gt=0)]


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training and what came of it.

    Attributes:
        asked: What it was to be given.
        budget: What it was given: whole answers, and whole batches of text.
        answers_s: Seconds of training on answers; 0 of a run that was not timed.
        text_s: Seconds of training on text.
        taus: Tokens per round at lookahead 1, 2, ..., greedily, by exact replay.
        greedy_match: Share of held-out tokens on which draft and target agree.
        foretold: The same taus by the law of what had been measured before it; empty where none was asked.
    """

    asked: Budget
    budget: Budget
    answers_s: float
    text_s: float
    taus: tuple[Annotated[float, Field(ge=1)], ...]
    greedy_match: float
    foretold: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Trainings:
    """All of them, of one target, recipe and machine.

    Attributes:
        target: Fingerprint.
        recipe: Its run name, whose answers are learned.
        inputs: Fingerprint of the answers and of all of the recipe that decides figures.
        prompts: Held-out ones, which taus are of.
        processor: The machine's.
        threads: Of it.
        torch: Version.
        precision: Of the trainings.
        answers_per_s: Answer tokens that the target writes in a second.
        tokens_per_answer: In the mean.
        commit: Of the code.
        created: When the file was begun.
        trainings: In the order in which they were made.
    """

    schema: Schema
    target: str
    recipe: str
    inputs: str
    prompts: int
    processor: str
    threads: int
    torch: str
    precision: str
    answers_per_s: Positive
    tokens_per_answer: Positive
    commit: str | None
    created: str
    trainings: tuple[Training, ...]

    @property
    def budgets(self) -> list[Budget]:
        return [training.budget for training in self.trainings]

    @property
    def lookaheads(self) -> range:
        """At which every training was scored."""
        return range(1, min(len(training.taus) for training in self.trainings) + 1)

    def taus(self, lookahead: int) -> list[float]:
        """Tokens per round of all trainings."""
        return [training.taus[lookahead - 1] for training in self.trainings]


FILE = TypeAdapter(Trainings)


def read_trainings(path: Path) -> Trainings:
    """What a file holds.

    Raises:
        UserError: If it is none, or holds too few trainings to fit a law to.
    """
    record = read_typed(path, FILE, REMEDY)
    if len(record.trainings) < LEAST_CELLS:
        raise UserError(
            f"{path}: holds {len(record.trainings)} trainings, and a law needs {LEAST_CELLS} at least. "
            "Run `python -m benchmarks.budget` again: it continues."
        )
    return record


def write_trainings(record: Trainings, path: Path) -> None:
    """Write them, whole or not at all."""
    write_text(json.dumps(asdict(record), ensure_ascii=False, indent=1) + "\n", path)


def shapes_of(trainings: Sequence[Training]) -> list[tuple[int, int]]:
    """Layers and ids that were trained, from shallow to deep."""
    return sorted({(training.budget.layers, training.budget.ids) for training in trainings})
