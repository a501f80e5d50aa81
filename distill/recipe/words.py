"""A recipe as command lines name it: RECIPE key=value ..., and perhaps --debug. No torch."""

from pathlib import Path
from typing import Annotated, Protocol

from pydantic import AfterValidator, Field

from architectures.settings.flags import Flag

RECIPE_SUFFIXES = (".yaml", ".yml")


def is_recipe(word: str) -> bool:
    """Whether a word behind a recipe names another one, and is no value for the first."""
    return "=" not in word and Path(word).suffix.lower() in RECIPE_SUFFIXES


def values_alone(words: tuple[str, ...]) -> tuple[str, ...]:
    """The words, none of which is a recipe."""
    if more := [word for word in words if is_recipe(word)]:
        raise ValueError(
            f"must be values of the one recipe this command takes, got another: {more[0]}. "
            "Run it once for each; only `widedraft check` takes several."
        )
    return words


def one_recipe(words: tuple[str, ...]) -> tuple[str, ...]:
    """The words, of which the first alone may be a recipe."""
    return (*words[:1], *values_alone(words[1:]))


RecipeFile = Annotated[
    Path,
    Field(description="A YAML file; `widedraft recipes` writes those that come with it."),
    Flag(metavar="RECIPE", is_word=True),
]
Overrides = Annotated[
    tuple[str, ...],
    Field(description="Replaces the recipe's value of a dotted key."),
    Flag(metavar="key=value", is_word=True),
    AfterValidator(values_alone),
]
RecipeWords = Annotated[tuple[str, ...], Flag(metavar="RECIPE | key=value", is_word=True), AfterValidator(one_recipe)]
Debug = Annotated[
    bool,
    Field(description="The same with a tiny random target and few steps, in <run>-debug: minutes on two cores."),
]


class NamesRecipe(Protocol):
    """Settings of a command on a recipe."""

    @property
    def recipe(self) -> Path: ...

    @property
    def overrides(self) -> tuple[str, ...]: ...

    @property
    def debug(self) -> bool: ...
