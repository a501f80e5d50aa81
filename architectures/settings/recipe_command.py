"""Commands as remedies name them: with the recipe, the values and the --debug that this command was given. No torch.

A remedy that left out --debug would have a user who tries a recipe in a minute cut the real target.
"""

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from architectures.files.masked_words import masked

UNNAMED = ("RECIPE",)
NAMED_VARIABLE = "WIDEDRAFT_RECIPE_WORDS"  # of the command that started this process

given: list[Sequence[str]] = []  # innermost last


@contextmanager
def of_recipe(words: Sequence[str]) -> Iterator[None]:
    """Have remedies name a recipe, for as long as the block lasts.

    Args:
        words: The recipe, key=value words, and perhaps --debug.
    """
    given.append(words)
    try:
        yield
    finally:
        given.pop()


def command_of(stage: str, *flags: str) -> str:
    """A command on this recipe, in quotes, to be copied; secrets in it are masked."""
    named = given[-1] if given else UNNAMED
    return f"`{shlex.join(['widedraft', stage, *(masked(word) for word in named), *flags])}`"


def handed_on() -> dict[str, str]:
    """What names the recipe in the environment of a process that this one starts."""
    return {NAMED_VARIABLE: json.dumps(list(given[-1]))} if given else {}


def started_with(words: Sequence[str]) -> Sequence[str]:
    """What the command that started this process was given; these words where that handed nothing on."""
    return json.loads(os.environ.get(NAMED_VARIABLE, "null")) or words
