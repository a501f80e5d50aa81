"""JSON files of this project, read into the values they were written from. No torch."""

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from architectures.errors import UserError
from architectures.files.entry_kinds import shown
from architectures.files.reading import JSON_MIB, read_text

Value = TypeVar("Value")
WITHOUT_VALUE = ("missing", "json_invalid")  # mistakes of which the value is all that is around them


def read_typed(path: Path, form: TypeAdapter[Value], remedy: str) -> Value:
    """What a file holds.

    Args:
        path: The file.
        form: Of its content; nothing is converted to fit it.
        remedy: The sentence that ends the message.

    Raises:
        UserError: If it is no such file; the message names it, the field and its value.
    """
    return parsed(form, read_text(path, most_mib=JSON_MIB), str(path), remedy)


def parsed(form: TypeAdapter[Value], text: str | bytes, where: str, remedy: str) -> Value:
    """What a JSON text holds, read as `read_typed` reads a file; `where` begins the message."""
    try:
        return form.validate_json(text, strict=True)
    except ValidationError as error:
        raise UserError(f"{where}: {first_mistake(error)}. {remedy}") from error


def checked(form: TypeAdapter[Value], value: Any, where: str, remedy: str) -> Value:
    """What a JSON value that was read already holds; errors as for `parsed`."""
    return parsed(form, json.dumps(value), where, remedy)


def first_mistake(error: ValidationError) -> str:
    """The first field that does not fit, why, and what it is."""
    mistake = error.errors()[0]
    field_path = ".".join(map(str, mistake["loc"]))
    value = "" if mistake["type"] in WITHOUT_VALUE else f", got {shown(mistake['input'])}"
    return f"{field_path + ': ' if field_path else ''}{mistake['msg']}{value}"
