"""JSON files of this project, read into the values they were written from."""

from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from architectures.errors import UserError
from architectures.reading import read_text

Value = TypeVar("Value")


def read_typed(path: Path, form: TypeAdapter[Value], remedy: str) -> Value:
    """What a file holds.

    Args:
        path: The file.
        form: Of its content; nothing is converted to fit it.
        remedy: The sentence that ends the message.

    Raises:
        UserError: If it is no such file; the message names it and the field.
    """
    return parsed(form, read_text(path), str(path), remedy)


def parsed(form: TypeAdapter[Value], text: str, where: str, remedy: str) -> Value:
    """What a JSON text holds, read as `read_typed` reads a file; `where` begins the message."""
    try:
        return form.validate_json(text, strict=True)
    except ValidationError as error:
        mistake = error.errors()[0]
        place = ".".join(map(str, mistake["loc"]))
        raise UserError(f"{where}: {place + ': ' if place else ''}{mistake['msg']}. {remedy}") from error
