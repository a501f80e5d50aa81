"""Errors by their type and by what they name."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from architectures.errors import UserError

Errors = type[Exception] | tuple[type[Exception], ...]


@contextmanager
def rejects(*fragments: object, error: Errors = UserError) -> Iterator[pytest.ExceptionInfo]:
    """The block raises `error`, whose message has each fragment as a whole: a key, a flag, a file or a value."""
    with pytest.raises(error) as raised:
        yield raised
    message = str(raised.value)
    absent = [text for text in map(str, fragments) if not holds(message, text)]
    assert not absent, f"{absent} not in: {message}"


def holds(message: str, fragment: str) -> bool:
    """A number or word within a longer one does not count."""
    before = r"(?<!\w)" if re.match(r"\w", fragment) else ""
    after = r"(?!\w)" if re.search(r"\w$", fragment) else ""
    return re.search(f"{before}{re.escape(fragment)}{after}", message) is not None
