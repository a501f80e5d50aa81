"""Rows with given responses: conversations whose assistant turns are trained on unchanged. No torch.

A row has one of five forms, tried in this order: `messages`, `conversation`, or a `prompt`, a `question` or an
`instruction` (with an optional `input`) with a response, which is the first of `answer`, `completion`, `response` and
`output`. Rows of a named task are parsed by the task.
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
RESPONSE_FIELDS = ("answer", "completion", "response", "output")
EXAMPLE = '{"prompt": "How many sides has a cube?", "answer": "Six."}'
WRITTEN_INSTEAD = "or set data.responses to written: the target generates them"


@dataclass(frozen=True)
class Conversation:
    """A conversation with given responses.

    Attributes:
        source: Its row, as "file.jsonl:12".
        messages: Oldest first. The last is the assistant's, and each assistant turn follows a user's.
    """

    source: str
    messages: tuple[Message, ...]

    @property
    def responses(self) -> list[int]:
        """Indices of the assistant's turns."""
        return [index for index, message in enumerate(self.messages) if message["role"] == "assistant"]

    @property
    def question(self) -> tuple[Message, ...]:
        """Messages before the first response."""
        return self.messages[: self.responses[0]]


def load_conversations(sources: Sequence[PromptSource]) -> list[Conversation]:
    """Load the conversations of every source, in order.

    Raises:
        UserError: If a source is missing, cannot be read, has no rows, or has a row that is no conversation.
    """
    return [conversation for source in sources for conversation in load_rows(source, parser_of(source))]


def parser_of(source: PromptSource) -> Callable[[Any, str], Conversation]:
    if source.task is None:
        return parse_conversation
    task = TASKS[source.task]
    return lambda row, where: conversation_of(task_conversation(task, row, where), where)


def parse_conversation(row: Any, where: str) -> Conversation:
    field = first_field(row, QUESTION_FIELDS, where, example=EXAMPLE)
    if field in ("messages", "conversation"):
        messages = parse_each_message(row[field], field, where)
    else:
        response = first_field(row, RESPONSE_FIELDS, where, example=f"{EXAMPLE}, {WRITTEN_INSTEAD}")
        text = checked_text(row[response], response, where)
        messages = [user_turn(single_text(row, field, where)), assistant_turn(text)]
    return conversation_of(messages, where)


def conversation_of(messages: Sequence[Message], where: str) -> Conversation:
    """Build a conversation up to the last response; strip responses of whitespace, which a target does not generate."""
    roles = [message["role"] for message in messages]
    follows = [before for before, role in zip([None, *roles], roles, strict=False) if role == "assistant"]
    if not follows or set(follows) != {"user"}:
        raise UserError(
            f"{where}: messages must contain assistant turns, each after a user turn, got {', '.join(roles)}. Fix or "
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
