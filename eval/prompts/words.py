"""Prompts as the command line names them: a file, a task, or a task and a file of its rows. No torch."""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

from pydantic import Field

from architectures.errors import UserError
from architectures.settings.flags import Flag
from eval.prompts.source import PromptSource
from eval.prompts.table import TASKS

PromptWords = Annotated[
    tuple[str, ...],
    Field(
        strict=False,
        description="A file of prompts, a task of `widedraft recipes --tasks`, or a task and a file of its rows.",
    ),
    Flag(metavar="FILE|TASK[=FILE]", is_repeated=True),
]


def prompt_sources(words: Sequence[str]) -> list[PromptSource]:
    """The sources that some words name, in order.

    Raises:
        UserError: If a word is empty, or neither a task nor like a file's name.
    """
    return [prompt_source(word) for word in words]


def prompt_source(word: str) -> PromptSource:
    """The source that a word names; ./gsm8k is a file of that name, gsm8k the task."""
    if not word:
        raise UserError("--prompts must name a file or a task, got an empty word.")
    if word in TASKS:
        return PromptSource(task=word)
    name, separator, path = word.partition("=")
    if separator and name in TASKS:
        if not path:
            raise UserError(f"--prompts {word}: no file stands after the =. Name one, or leave the = out.")
        return PromptSource(task=name, path=path)
    if not Path(word).exists() and not Path(name).suffix and "/" not in name:
        near = get_close_matches(name, TASKS, n=1)
        hint = f"Did you mean {near[0]}?" if near else "`widedraft recipes --tasks` lists the tasks."
        raise UserError(f"--prompts {word}: {name} is no task, and there is no such file. {hint}")
    return PromptSource(path=word)
