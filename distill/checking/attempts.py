"""Mistakes are gathered, so that all of them are told at once."""

from collections.abc import Callable
from typing import TypeVar

from architectures.errors import UserError

Value = TypeVar("Value")


def attempt(step: Callable[[], Value], problems: list[str]) -> Value | None:
    """What a step returns; None, and its message among the problems, if the user has to mend something."""
    try:
        return step()
    except UserError as error:
        problems.append(str(error))
        return None
