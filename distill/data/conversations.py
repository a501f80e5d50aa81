"""Rows with given responses: conversations whose assistant turns are trained on unchanged. No torch.

A row has `messages`, `conversations` or `conversation` with responses in it; or a `prompt`, a `question` or an
`instruction` (with an optional `input`) with a response, which is the first of `answer`, `completion`, `response`,
`output` and `chosen`; or only `chosen`, the preferred conversation. Rows of a named task are parsed by the task.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eval.chat import Message, RowError, RowErrors, Turn, assistant_turn, checked_text, parse_messages, parse_tools
from eval.prompts import (
    FIELDS,
    MESSAGE_FIELDS,
    RESPONSE_FIELDS,
    first_field,
    first_there,
    load_rows,
    request_body,
    row_messages,
    task_conversation,
    with_template_kwargs,
)
from eval.tasks import TASKS, PromptSource

QUESTION_FIELDS = tuple(name for name in FIELDS if name != "turns")
EXAMPLE = '{"prompt": "How many sides has a cube?", "answer": "Six."}'
WRITTEN_INSTEAD = "or set data.responses to written: the target generates them"


@dataclass(frozen=True)
class Conversation:
    """A conversation with given responses.

    Attributes:
        source: Its row, as "file.jsonl:12".
        messages: Oldest first. The last is the assistant's, and each assistant turn follows a user's or a tool's,
            except turns of weight 0 (OpenAI's field), which are not trained on.
        tools: Functions offered to the assistant.
        chat_template_kwargs: Further arguments of the chat template.
    """

    source: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def responses(self) -> list[int]:
        """Indices of the assistant's turns, without those of weight 0."""
        return [index for index, message in enumerate(self.messages) if is_learned(message)]

    @property
    def question(self) -> tuple[Message, ...]:
        """Messages before the first response."""
        return self.messages[: self.responses[0]]

    def until(self, index: int) -> Turn:
        """Return the messages before an index, to be rendered."""
        return Turn(self.messages[:index], self.tools, self.chat_template_kwargs)


def load_conversations(
    sources: Sequence[PromptSource],
    *,
    chat_template_kwargs: Iterable[Mapping[str, Any]] = ({},),
    errors: RowErrors | None = None,
) -> list[Conversation]:
    """Load the conversations of every source, in order; arguments as for eval.prompts.load_prompts.

    Raises:
        UserError: If a source is missing, cannot be read, has no rows, or has a row that is no conversation.
    """
    loaded = [each for source in sources for each in load_rows(source, parser_of(source), errors)]
    return with_template_kwargs(loaded, chat_template_kwargs)


def parser_of(source: PromptSource) -> Callable[[Any, str], Conversation]:
    if source.task is None:
        return parse_conversation
    task = TASKS[source.task]
    return lambda row, where: conversation_of(task_conversation(task, row, where), where)


def parse_conversation(row: Any, where: str) -> Conversation:
    row = request_body(row)
    name = first_field(row, QUESTION_FIELDS, where, example=EXAMPLE)
    messages = row_messages(row, name, where)
    response = first_there(RESPONSE_FIELDS, row)
    has_own = name in (*MESSAGE_FIELDS, "chosen") and (response is None or messages[-1]["role"] != "user")
    if not has_own:
        if response is None and messages[-1]["role"] != "assistant":
            first_field(row, RESPONSE_FIELDS, where, example=f"{EXAMPLE}, {WRITTEN_INSTEAD}")
        elif response is not None and isinstance(row[response], list):
            following = parse_messages(row[response], response, where)
            repeated = [stripped(each) for each in following]  # `chosen` of a preference row may repeat the prompt
            messages = [*(each for each in messages if stripped(each) not in repeated), *following]
        elif response is not None:
            messages = [*messages, assistant_turn(checked_text(row[response], response, where))]
    return conversation_of(messages, where, parse_tools(row, where))


def stripped(message: Message) -> Message:
    return message | {"content": message["content"].strip()}


def conversation_of(messages: Sequence[Message], where: str, tools: tuple[dict[str, Any], ...] = ()) -> Conversation:
    """Build a conversation up to the last response; strip responses of whitespace, which a target does not generate."""
    roles = [message["role"] for message in messages]
    learned_at = [index for index, message in enumerate(messages) if is_learned(message)]
    follows = [roles[index - 1] if index else None for index in learned_at]
    if not follows or not set(follows) <= {"user", "tool"}:
        kind = "messages must contain assistant turns, those of weight 0 aside, each after a user turn"
        raise RowError(f"{where}: {kind}, got {', '.join(roles)}. Fix or delete this row, {WRITTEN_INSTEAD}.", kind)
    until_last = messages[: learned_at[-1] + 1]
    learned = (stripped(message) if message["role"] == "assistant" else message for message in until_last)
    return Conversation(where, tuple(learned), tools)


def is_learned(message: Message) -> bool:
    return message["role"] == "assistant" and message.get("weight") != 0
