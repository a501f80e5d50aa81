"""How often answers on the disk hold each token id, by the prompts they answer. No torch."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from architectures.files.entry_kinds import TokenId
from architectures.files.typed_file import parsed
from eval.answers.shards import REWRITTEN, shard_lines

Counts = dict[str, Counter[int]]  # of each domain, by token id


@dataclass(frozen=True)
class CountedAnswer:
    """What counts of an answer; eval.answers.traces has the whole of it."""

    answer_ids: Annotated[list[TokenId], Field(min_length=1)]
    source: str
    task: str | None = None

    @property
    def domain(self) -> str:
        """What kind of prompt it answers: the task, or else the file or data set it came from."""
        return self.task or self.source.rpartition(":")[0] or self.source


COUNTED_ANSWER = TypeAdapter(CountedAnswer)


def id_counts_in(folder: Path, name: str, *, most_tokens: int | None = None) -> Counts:
    """How often the answers of one name hold each id; their prompts do not count.

    Args:
        folder: Of answers.
        name: "train" or "eval".
        most_tokens: Read no further answer once so many tokens are counted; None reads all.

    Raises:
        UserError: If answers are missing or damaged.
    """
    counts: Counts = {}
    num_tokens = 0
    for where, line in shard_lines(folder, name):
        if most_tokens is not None and num_tokens >= most_tokens:
            break
        answer = parsed(COUNTED_ANSWER, line, where, REWRITTEN)
        counts.setdefault(answer.domain, Counter()).update(answer.answer_ids)
        num_tokens += len(answer.answer_ids)
    return counts


def pooled(counts: Counts) -> Counter[int]:
    """The counts of all domains together."""
    return sum(counts.values(), Counter())
