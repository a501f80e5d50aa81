"""A recipe as command lines name it: RECIPE key=value ..., and perhaps --debug. No torch."""

from pathlib import Path
from typing import Annotated, Protocol

from pydantic import Field

from architectures.settings.flags import Flag

RecipeFile = Annotated[Path, Field(description="A YAML file, see recipes/."), Flag(metavar="RECIPE", is_word=True)]
Overrides = Annotated[
    tuple[str, ...],
    Field(description="Replaces the recipe's value of a dotted key."),
    Flag(metavar="key=value", is_word=True),
]
RecipeWords = Annotated[tuple[str, ...], Flag(metavar="RECIPE | key=value", is_word=True)]
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
