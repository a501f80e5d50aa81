"""What a row of a named task asks, and the answer it brings. Pure."""

import re
from collections.abc import Mapping
from itertools import islice
from typing import Any

from architectures.errors import UserError
from eval.prompts.forms import (
    Message,
    Prompt,
    parse_category,
    parse_each_message,
    parse_messages,
    parse_turns,
    raw_text,
    user_turn,
)
from eval.prompts.rows import checked_text, first_there, require_object
from eval.tasks.task import FieldNames, Task

FIELD_IN_TEMPLATE = re.compile(r"\{(\w+)\}")
PIECE = re.compile(r" ?[^\W\d_]+| ?\d| ?(?:[^\w\s]|_)+|\s+")  # words, digits, signs, white space: all of a text


def asked_of(task: Task, row: Any, where: str) -> Prompt | None:
    """As `task_prompt`; None for a row that the task leaves out.

    Raises:
        UserError: As `task_prompt`.
    """
    prompt = task_prompt(task, row, where)
    return prompt if prompt.messages[0]["content"] else None


def task_prompt(task: Task, row: Any, where: str) -> Prompt:
    """One row of a task as a prompt.

    Args:
        task: What the row is of.
        row: Its fields; others than the task's do not matter.
        where: Its place, for messages.

    Raises:
        UserError: If the row is no object, lacks a field of the task, or has it filled wrongly.
    """
    require_object(row, where, example=example_row(task))
    later: list[str] = []
    if task.form == "turns":
        first, *later = parse_turns(*only_field(task, row, where), where)
        messages = (user_turn(first),)
    elif task.form == "conversation":
        messages = parse_messages(*only_field(task, row, where), where)
    else:
        text = template_text(task, row, where)
        messages = (raw_text(text) if task.form == "text" else user_turn(text),)
    return Prompt(where, messages, tuple(later), row_category(task, row, where), task.label)


def row_category(task: Task, row: Mapping[str, Any], where: str) -> str | None:
    """The category of a row, if it has one."""
    field = first_there(task.category, row)
    return None if field is None else parse_category(row[field], where)


def task_conversation(task: Task, row: Any, where: str) -> list[Message]:
    """One row of a task with the answers it brings, oldest message first.

    Raises:
        UserError: As `task_prompt`; also if rows of the task bring no answer to a user's words.
    """
    prompt = task_prompt(task, row, where)
    if task.form == "conversation":
        return parse_each_message(*only_field(task, row, where), where)
    if task.form != "user" or not task.answer:
        raise UserError(
            f"{where}: rows of task {task.name} bring no answer to a user's words. Let the target answer them "
            "(data.answers: written), or name another task."
        )
    return [*prompt.messages, {"role": "assistant", "content": task_answer(task, row, where)}]


def task_answer(task: Task, row: Mapping[str, Any], where: str) -> str:
    """The reference answer of a row, of a task whose rows have one."""
    return checked_text(*wanted(task, task.answer, row, where), where)


def template_text(task: Task, row: Mapping[str, Any], where: str) -> str:
    """The template with the row's fields in it, without the paragraphs that speak of an optional field it lacks."""
    texts = {name: field_text(task, name, row, where) for name in task.fields}
    filled = [
        paragraph.format_map(texts)
        for paragraph in task.template
        if all(texts[name] is not None for name in FIELD_IN_TEMPLATE.findall(paragraph))
    ]
    return middle(whole_lines("\n\n".join(filled), task.max_characters), task.pieces)


def field_text(task: Task, name: str, row: Mapping[str, Any], where: str) -> str | None:
    """The text of one field of a template; None for an optional one that is absent or empty."""
    fields = task.fields[name]
    if name in task.optional and all(row.get(field) in (None, "") for field in fields):
        return None
    return checked_text(*wanted(task, fields, row, where), where)


def only_field(task: Task, row: Mapping[str, Any], where: str) -> tuple[Any, str]:
    """As `wanted`, of a task that reads one list."""
    [fields] = task.fields.values()
    return wanted(task, fields, row, where)


def wanted(task: Task, fields: FieldNames, row: Mapping[str, Any], where: str) -> tuple[Any, str]:
    """What stands in the first of some fields that a row has, and which of them that is."""
    field = first_there(fields, row)
    if field is None:
        known = ", ".join(name for name, value in row.items() if value is not None) or "no fields"
        raise UserError(
            f"{where}: has no {' or '.join(fields)}, which task {task.name} reads; it has {known}. Give each row that "
            "field, name the task the rows are of (`widedraft recipes --tasks` lists them), or leave the task out."
        )
    return row[field], field


def middle(text: str, pieces: tuple[int, int] | None) -> str:
    """The pieces of a text from the first place to before the second; nothing where it has fewer than the second."""
    if pieces is None:
        return text
    found = list(islice(PIECE.finditer(text), pieces[1]))
    return "".join(piece.group() for piece in found[pieces[0] :]) if len(found) == pieces[1] else ""


def whole_lines(text: str, most: int | None) -> str:
    """At most so many characters from the beginning of a text: whole lines, or a part of the first if it is longer."""
    if most is None or len(text) <= most:
        return text
    lines = text[: text.rfind("\n", 0, most) + 1]
    return lines if lines.strip() else text[:most]


def example_row(task: Task) -> str:
    """What a row looks like at least."""
    names = [fields[0] for name, fields in task.fields.items() if name not in task.optional]
    return "{" + ", ".join(f'"{name}": "..."' for name in names) + "}"
