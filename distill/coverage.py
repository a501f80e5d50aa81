"""How much of a run's answers a small output head could say: coverage, by the domain of the prompt. No torch.

Ids are ranked by the answers that are trained on, as the draft's are, and held against those that are held out.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import TypeAdapter

from architectures.draft_vocabulary.counting import coverage, most_frequent, token_counts
from architectures.entry_kinds import TokenId
from architectures.typed_file import parsed
from distill.expected_work import finished_counts
from distill.recipe import Recipe
from eval.shards import REWRITTEN, shard_lines

NO_DOMAIN = "no task or category"


@dataclass(frozen=True)
class Answer:
    """What counting needs of a trace (eval/traces.py): the tokens said, and to what kind of prompt."""

    answer_ids: tuple[TokenId, ...]
    category: str | None = None
    task: str | None = None

    @property
    def domain(self) -> str:
        """The prompt's task, or the category of one without."""
        return self.task or self.category or NO_DOMAIN


@dataclass(frozen=True)
class Said:
    """How often a run's answers say each token id.

    Attributes:
        train: Those that are trained on.
        held_out: The others, by domain.
    """

    train: Counter[int]
    held_out: Mapping[str, Counter[int]]

    @cached_property
    def all_held_out(self) -> Counter[int]:
        """Of every domain."""
        return sum(self.held_out.values(), Counter())

    def most_said(self, size: int) -> tuple[int, ...]:
        """So many ids, those that are said most in training; fewer where it says fewer."""
        return most_frequent(self.train, always=(), size=size)

    def covered(self, size: int, counts: Mapping[int, int]) -> float:
        """Share of some counted tokens that are among as many ids, in [0, 1]; NaN of no tokens."""
        return coverage(self.most_said(size), counts)


def answers_said(recipe: Recipe) -> Said | None:
    """What the finished answers in <run>/data say; None where they are not this recipe's, or none are trained on.

    Raises:
        UserError: If a file of them is missing or damaged.
    """
    counts = finished_counts(recipe)
    if counts is None or not counts["train"]["answers"]:
        return None
    folder = Path(recipe.run_dir) / "data"
    held_out = defaultdict[str, Counter[int]](Counter)
    for answer in answers_of(folder, "eval"):
        held_out[answer.domain].update(answer.answer_ids)
    return Said(token_counts(answer.answer_ids for answer in answers_of(folder, "train")), held_out)


def answers_of(folder: Path, name: str) -> Iterator[Answer]:
    """The answers of one name, in their order; errors as for `answers_said`."""
    for where, line in shard_lines(folder, name):
        yield parsed(ANSWER, line, where, REWRITTEN)


ANSWER = TypeAdapter(Answer)
