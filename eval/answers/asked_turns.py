"""The questions of a conversation that are put to a target one after another, each after the answer before it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from eval.prompts import Message, Prompt


@dataclass(frozen=True)
class Turn:
    """One question to the target, and the questions that follow it in the same conversation."""

    id: int
    row: str
    number: int
    messages: tuple[Message, ...]
    later_turns: tuple[str, ...]
    category: str | None
    task: str | None

    @property
    def source(self) -> str:
        """The row, and which of its turns this is unless it is the first."""
        return self.row if self.number == 1 else f"{self.row}#{self.number}"

    def following(self, answer: str) -> "Turn":
        """The next turn of the conversation, once this one is answered."""
        question, *later_turns = self.later_turns
        messages = ({"role": "assistant", "content": answer}, {"role": "user", "content": question})
        return replace(
            self,
            id=self.id + 1,
            number=self.number + 1,
            messages=(*self.messages, *messages),
            later_turns=tuple(later_turns),
        )


def first_turns(prompts: Sequence[Prompt]) -> list[Turn]:
    """The first turn of each prompt; ids leave room for its later ones."""
    ids = accumulate((1 + len(prompt.later_turns) for prompt in prompts), initial=0)
    return [
        Turn(first_id, prompt.source, 1, prompt.messages, prompt.later_turns, prompt.category, prompt.task)
        for first_id, prompt in zip(ids, prompts, strict=False)  # the last sum is the number of all turns
    ]


def num_turns(turns: Sequence[Turn]) -> int:
    """How many answers first turns and all that follow them have."""
    return sum(1 + len(turn.later_turns) for turn in turns)
