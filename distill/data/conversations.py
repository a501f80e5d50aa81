"""Rows that bring their own answers: conversations whose assistant turns are learned as they stand. No torch.

A row has one of five forms; where it has several, the first of this order counts: `messages`, `conversation`, or a
`prompt`, a `question` or an `instruction` (with an optional `input`) beside an answer, which is the first of `answer`,
`completion`, `response` and `output`. Rows of a named task are read as the task says.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from architectures.errors import UserError
from eval.prompts import (
    Message,
    checked_text,
    first_field,
    load_rows,
    parse_each_message,
    single_text,
    task_conversation,
    user_turn,
)
from eval.tasks import TASKS, PromptSource

QUESTION_FIELDS = ("messages", "conversation", "prompt", "question", "instruction")
ANSWER_FIELDS = ("answer", "completion", "response", "output")
EXAMPLE = '{"prompt": "How many sides has a cube?", "answer": "Six."}'
WRITTEN_INSTEAD = "or set data.answers to written, and the target answers"


@dataclass(frozen=True)
class Conversation:
    """A conversation that was had.

    Attributes:
        source: The row it came from, as "file.jsonl:12".
        messages: Oldest first. The last one is the assistant's, and each of the assistant's answers a user's.
    """

    source: str
    messages: tuple[Message, ...]

    @property
    def answers(self) -> list[int]:
        """Places of the assistant's turns among the messages."""
        return [index for index, message in enumerate(self.messages) if message["role"] == "assistant"]

    @property
    def question(self) -> tuple[Message, ...]:
        """What the first answer answers."""
        return self.messages[: self.answers[0]]


def load_conversations(sources: Sequence[PromptSource]) -> list[Conversation]:
    """The conversations of every source, in order.

    Raises:
        UserError: If a source is missing, cannot be read, holds no rows, or has a row that is no conversation.
    """
    return [conversation for source in sources for conversation in load_rows(source, parser_of(source))]


def parser_of(source: PromptSource) -> Callable[[Any, str], Conversation]:
    """What reads a row of a source: its task, or the five forms of plain rows."""
    if source.task is None:
        return parse_conversation
    task = TASKS[source.task]
    return lambda row, where: conversation_of(task_conversation(task, row, where), where)


def parse_conversation(row: Any, where: str) -> Conversation:
    """One row of any known form; UserErrors name the row."""
    field = first_field(row, QUESTION_FIELDS, where, example=EXAMPLE)
    if field in ("messages", "conversation"):
        messages = parse_each_message(row[field], field, where)
    else:
        answer = first_field(row, ANSWER_FIELDS, where, example=f"{EXAMPLE}, {WRITTEN_INSTEAD}")
        text = checked_text(row[answer], answer, where)
        messages = [user_turn(single_text(row, field, where)), assistant_turn(text)]
    return conversation_of(messages, where)


def conversation_of(messages: Sequence[Message], where: str) -> Conversation:
    """Some messages up to the last answer, answers without white space around them, which a target does not write."""
    roles = [message["role"] for message in messages]
    follows = [before for before, role in zip([None, *roles], roles, strict=False) if role == "assistant"]
    if not follows or set(follows) != {"user"}:
        raise UserError(
            f"{where}: messages must hold an assistant turn, each after a user's, got {', '.join(roles)}. Fix or "
            f"delete this row, {WRITTEN_INSTEAD}."
        )
    last = len(roles) - 1 - roles[::-1].index("assistant")
    learned = [
        assistant_turn(message["content"].strip()) if message["role"] == "assistant" else message
        for message in messages[: last + 1]
    ]
    return Conversation(where, tuple(learned))


def assistant_turn(text: str) -> Message:
    return {"role": "assistant", "content": text}
