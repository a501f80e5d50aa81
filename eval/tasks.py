"""Prompt sets by file or dataset name, and how a prompt becomes token ids.

A row may have any of five forms; where it has several, the first of this order counts:
`messages`, `turns`, `prompt`, `question`, `instruction` (with an optional `input`). Any of them may have a `category`.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from architectures.errors import UserError
from eval.config import PromptSource

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, str]
Parsed = TypeVar("Parsed")

FIELDS = ("messages", "turns", "prompt", "question", "instruction")
ROLES = ("system", "user", "assistant")
EXAMPLE = '{"prompt": "Why is the sky blue?"}'


@dataclass(frozen=True)
class Prompt:
    """What the target is asked.

    Args:
        source: The row it came from, as "file.jsonl:12".
        messages: The conversation so far, oldest first; the last one is the user's.
        later_turns: User turns to ask afterwards, each once the target has answered the one before.
        category: What kind of prompt it is, for figures by kind; nothing else depends on it.
    """

    source: str
    messages: tuple[Message, ...]
    later_turns: tuple[str, ...] = ()
    category: str | None = None


def load_prompts(sources: Sequence[PromptSource]) -> list[Prompt]:
    """The prompts of every source, in order.

    Raises:
        UserError: If a source is missing, cannot be read, holds no rows, or has a row that is no prompt.
    """
    return [prompt for source in sources for prompt in load_rows(source, parse_row)]


def render_prompt(tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message]) -> list[int]:
    """Token ids the target continues with its answer.

    Through the chat template, opened for the assistant, where the tokenizer has one; the template alone then places
    special tokens. Otherwise the messages' text, joined by blank lines, with the tokenizer's own special tokens.

    Raises:
        UserError: If the chat template refuses the conversation.
    """
    if not tokenizer.chat_template:
        return list(tokenizer("\n\n".join(message["content"] for message in messages))["input_ids"])
    return render_chat(tokenizer, messages, add_generation_prompt=True)


def render_chat(
    tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message], *, add_generation_prompt: bool
) -> list[int]:
    """Token ids of a conversation in the tokenizer's chat template, opened for the assistant's turn if that is asked.

    Raises:
        UserError: If the chat template refuses the conversation.
    """
    from jinja2 import TemplateError

    try:
        ids = tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=add_generation_prompt, return_dict=False
        )
    except TemplateError as error:
        roles = ", ".join(message["role"] for message in messages)
        raise UserError(
            f"The target's chat template refuses a conversation of the roles {roles}: {error}. "
            "Give it the order of roles its template accepts."
        ) from error
    return cast("list[int]", ids)


def template_hash(tokenizer: "PreTrainedTokenizerBase") -> str:
    """sha256 of what frames a prompt: the chat template, or its absence, and the special tokens."""
    template = tokenizer.get_chat_template() if tokenizer.chat_template else None
    framing = {"template": template, "special_tokens": {k: str(v) for k, v in tokenizer.special_tokens_map.items()}}
    return hashlib.sha256(json.dumps(framing, sort_keys=True).encode()).hexdigest()


def load_rows(source: PromptSource, parse: Callable[[Any, str], Parsed]) -> list[Parsed]:
    """What the first num_prompts rows of one source are parsed as, each with its place; at least one."""
    rows = file_rows(Path(source.path)) if source.path is not None else dataset_rows(source)
    parsed = [parse(row, where) for where, row in islice(rows, source.num_prompts)]
    if not parsed:
        raise UserError(f"{source.path or source.name}: no prompts in it. Give a source with at least one row.")
    return parsed


def file_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """(place, row) of each line of a JSON-lines file; blank lines are passed over but counted."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"{path}:{number}", parse_json(line, f"{path}:{number}")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}). Check the path of this prompt file.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text ({error}). Save it as UTF-8 JSON lines.") from error


def parse_json(line: str, where: str) -> Any:
    """The JSON value of one line."""
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: is not valid JSON ({error}). Write one JSON object per line.") from error


def dataset_rows(source: PromptSource) -> Iterator[tuple[str, Any]]:
    """(place, row) of each row of a `datasets` split: a hub name or a local folder."""
    from datasets import Dataset, load_dataset
    from datasets.exceptions import DatasetsError

    name = str(source.name)
    label = f"dataset {name}" + (f", config {source.config}" if source.config else "") + f", split {source.split}"
    try:
        rows = load_dataset(name, source.config, split=source.split)
    except (DatasetsError, OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{label}: cannot be loaded ({reason}). Check its name, config and split, and the network."
        ) from error
    assert isinstance(rows, Dataset)
    place = f"{name}/{source.config}[{source.split}]" if source.config else f"{name}[{source.split}]"
    for number, row in enumerate(rows, start=1):
        yield f"{place}:{number}", row


def parse_row(row: Any, where: str) -> Prompt:
    """One row of any known form as a prompt; UserErrors name the row."""
    field = first_field(row, FIELDS, where, example=EXAMPLE)
    category = parse_category(row.get("category"), where)
    if field == "messages":
        return Prompt(where, parse_messages(row[field], where), category=category)
    if field == "turns":
        first, *later = parse_turns(row[field], where)
        return Prompt(where, (user_turn(first),), tuple(later), category)
    return Prompt(where, (user_turn(single_text(row, field, where)),), category=category)


def parse_category(value: Any, where: str) -> str | None:
    """A row's category: a text, or a number as `datasets` stores class labels; None where it is absent or empty."""
    if value is None or value == "":
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return checked_text(value, "category", where)


def first_field(row: Any, fields: Sequence[str], where: str, *, example: str) -> str:
    """The first of some fields that a row has; the example is shown to whoever has none."""
    if not isinstance(row, dict):
        raise UserError(f"{where}: is {describe(row)}, not a JSON object. Write one object per row, e.g. {example}.")
    field = next((name for name in fields if row.get(name) is not None), None)  # datasets fills absent fields with null
    if field is None:
        known = ", ".join(row) or "no fields"
        raise UserError(
            f"{where}: has none of the known fields {', '.join(fields)}; it has {known}. "
            f"Give each row one of them, e.g. {example}."
        )
    return field


def single_text(row: Mapping[str, Any], field: str, where: str) -> str:
    """The text of a one-text row; an instruction is followed by its input, if any, after a blank line."""
    text = checked_text(row[field], field, where)
    if field != "instruction" or row.get("input") in (None, ""):
        return text
    return f"{text}\n\n{checked_text(row['input'], 'input', where)}"


def parse_turns(value: Any, where: str) -> list[str]:
    """The user turns of a `turns` row."""
    if not isinstance(value, list) or not value:
        raise UserError(f"{where}: turns must be a list of at least one text, got {describe(value)}. Mend this row.")
    return [checked_text(turn, f"turns[{i}]", where) for i, turn in enumerate(value)]


def parse_messages(value: Any, where: str) -> tuple[Message, ...]:
    """The conversation of a `messages` row up to its last user turn."""
    messages = parse_each_message(value, where)
    if messages[-1]["role"] == "assistant":  # the target writes this answer itself
        messages.pop()
    if not messages or messages[-1]["role"] != "user":
        raise UserError(
            f"{where}: messages must end with a user turn, or a user turn and its answer. Mend or delete this row."
        )
    return tuple(messages)


def parse_each_message(value: Any, where: str) -> list[Message]:
    """Every message of a `messages` row."""
    if not isinstance(value, list) or not value:
        raise UserError(
            f"{where}: messages must be a list of at least one message, got {describe(value)}. Mend this row."
        )
    return [parse_message(message, f"messages[{i}]", where) for i, message in enumerate(value)]


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


def checked_text(value: Any, name: str, where: str) -> str:
    """The value, if it is a text with something in it that UTF-8 can hold."""
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where}: {name} must be a non-empty text, got {describe(value)}. Mend or delete this row.")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise UserError(f"{where}: {name} holds half a surrogate pair, which is no character. Mend or delete this row.")
    return value


def user_turn(text: str) -> Message:
    """A message of the user."""
    return {"role": "user", "content": text}


def describe(value: Any) -> str:
    """What a JSON value is, in words a person editing the file would use."""
    if value is None:
        return "null"
    if value in ("", [], {}):
        return f"an empty {'text' if value == '' else 'list' if value == [] else 'object'}"
    shown = json.dumps(value, ensure_ascii=False, default=str)
    return shown if len(shown) <= 40 else f"{shown[:40]}…"
