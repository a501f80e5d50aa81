"""What a row of plain JSON lines asks.

A row may have any of six forms; where it has several, the first of this order counts: `messages`, `conversation`,
`turns`, `prompt`, `question`, `instruction` (with an optional `input`). Any of them may have a `category`; that of a
`conversation` may be called `dataset`, `topic` or `language`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from architectures.errors import UserError
from eval.prompts.rows import checked_text, describe, first_field, first_there

Message = dict[str, str]

FIELDS = ("messages", "conversation", "turns", "prompt", "question", "instruction")
CATEGORIES = ("category", "dataset", "topic", "language")  # of a conversation, as arXiv 2310.07177 calls them
ROLES = ("system", "user", "assistant")
TEXT = "text"  # in place of a role: no turn, but what the target continues as it stands
EXAMPLE = '{"prompt": "Why is the sky blue?"}'


@dataclass(frozen=True)
class Prompt:
    """What the target is asked.

    Args:
        source: The row it came from, as "file.jsonl:12".
        messages: The conversation so far, oldest first; the last one is the user's. Or a `raw_text` alone.
        later_turns: User turns to ask afterwards, each once the target has answered the one before.
        category: What kind of prompt it is, for figures by kind; nothing else depends on it.
        task: Which named task it is of, and in which version, as "gsm8k/1"; for figures too.
    """

    source: str
    messages: tuple[Message, ...]
    later_turns: tuple[str, ...] = ()
    category: str | None = None
    task: str | None = None


def parse_row(row: Any, where: str) -> Prompt:
    """One row of any known form as a prompt; UserErrors name the row."""
    field = first_field(row, FIELDS, where, example=EXAMPLE)
    names = CATEGORIES if field == "conversation" else CATEGORIES[:1]
    category = parse_category(row.get(first_there(names, row) or names[0]), where)
    if field in ("messages", "conversation"):
        return Prompt(where, parse_messages(row[field], field, where), category=category)
    if field == "turns":
        first, *later = parse_turns(row[field], field, where)
        return Prompt(where, (user_turn(first),), tuple(later), category)
    return Prompt(where, (user_turn(single_text(row, field, where)),), category=category)


def parse_category(value: Any, where: str) -> str | None:
    """A row's category: a text, or a number as `datasets` stores class labels; None where it is absent or empty."""
    if value is None or value == "":
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return checked_text(value, "category", where)


def single_text(row: Mapping[str, Any], field: str, where: str) -> str:
    """The text of a one-text row; an instruction is followed by its input, if any, after a blank line."""
    text = checked_text(row[field], field, where)
    if field != "instruction" or row.get("input") in (None, ""):
        return text
    return f"{text}\n\n{checked_text(row['input'], 'input', where)}"


def parse_turns(value: Any, name: str, where: str) -> list[str]:
    """The user turns in a field of a row."""
    if not isinstance(value, list) or not value:
        raise UserError(f"{where}: {name} must be a list of at least one text, got {describe(value)}. Mend this row.")
    return [checked_text(turn, f"{name}[{i}]", where) for i, turn in enumerate(value)]


def parse_messages(value: Any, name: str, where: str) -> tuple[Message, ...]:
    """The conversation in a field of a row, up to its last user turn."""
    messages = parse_each_message(value, name, where)
    if messages[-1]["role"] == "assistant":  # the target writes this answer itself
        messages.pop()
    if not messages or messages[-1]["role"] != "user":
        raise UserError(
            f"{where}: {name} must end with a user turn, or a user turn and its answer. Mend or delete this row."
        )
    return tuple(messages)


def parse_each_message(value: Any, name: str, where: str) -> list[Message]:
    """Every message of the conversation in a field of a row."""
    if not isinstance(value, list) or not value:
        raise UserError(
            f"{where}: {name} must be a list of at least one message, got {describe(value)}. Mend this row."
        )
    return [parse_message(message, f"{name}[{i}]", where) for i, message in enumerate(value)]


def parse_message(message: Any, name: str, where: str) -> Message:
    """Role and content of one message; other fields of it are not part of a prompt."""
    if not isinstance(message, dict):
        raise UserError(
            f"{where}: {name} must be an object with role and content, got {describe(message)}. Mend this row."
        )
    role = message.get("role")
    if role not in ROLES:
        raise UserError(f"{where}: {name}.role must be one of {', '.join(ROLES)}, got {role!r}. Mend this row.")
    return {"role": role, "content": checked_text(message.get("content"), f"{name}.content", where)}


def user_turn(text: str) -> Message:
    """A message of the user."""
    return {"role": "user", "content": text}


def raw_text(text: str) -> Message:
    """A text that the target continues as it stands; it is alone in its conversation."""
    return {"role": TEXT, "content": text}
