"""`widedraft check` of one recipe or of several. No torch."""

import sys
from pathlib import Path
from typing import Annotated

from pydantic import Field

from architectures.errors import UserError
from architectures.files.section import Section
from architectures.settings.flags import Flag
from architectures.settings.kinds import MOST
from architectures.tables import facts, terminal
from distill.commands.recipe_commands import of_words, recipe_of
from distill.recipe.words import Debug, RecipeFile, is_recipe


class CheckSettings(Section):
    """The recipes that are checked, and for which device."""

    recipe: RecipeFile
    words: Annotated[tuple[str, ...], Flag(metavar="RECIPE | key=value", is_word=True)] = Field(
        default=(), description="More recipes; and values that replace those of a dotted key in all of them."
    )
    debug: Debug = False
    device: Annotated[str | None, Flag(metavar="NAME", absent="this machine's GPU, else its processor")] = Field(
        default=None,
        description="Compute hours and memory for this device, as nvidia-h100-80gb-hbm3.",
    )

    processes: Annotated[
        Annotated[int, Field(ge=1, le=MOST)] | None,
        Flag(metavar="N", absent="1; what one of 8 cannot hold is refused"),
    ] = Field(default=None, description="Compute the memory of one of N processes in every stage.")
    device_gib: Annotated[
        Annotated[float, Field(gt=0)] | None,
        Flag(metavar="GIB", absent="what the GPU has, if it is known"),
    ] = Field(default=None, description="Memory of one device; a stage that needs more is refused.")

    @property
    def is_for_one(self) -> bool:
        """See distill.ranks.launching: its `processes` are those that it tells of."""
        return True

    @property
    def recipes(self) -> list[Path]:
        """Each once."""
        more = (Path(word) for word in self.words if is_recipe(word))
        return list(dict.fromkeys((self.recipe, *more)))

    @property
    def overrides(self) -> tuple[str, ...]:
        return tuple(word for word in self.words if not is_recipe(word))


def check(settings: CheckSettings) -> None:
    """Print what recipes would make and cost.

    Raises:
        UserError: With every mistake of the one recipe; of several, how many are wrong.
    """
    from distill.check import check_recipe

    several, wrong = len(settings.recipes) > 1, []
    for path in settings.recipes:
        if several:
            print(f"== {path}", flush=True)
        try:
            recipe = recipe_of(of_words((str(path), *settings.overrides), debug=settings.debug), weights=False)
            rows = check_recipe(recipe, settings.device, processes=settings.processes, device_gib=settings.device_gib)
        except UserError as error:
            if not several:
                raise
            print(error, file=sys.stderr, flush=True)
            wrong.append(path)
        else:
            print(terminal(facts(rows)), flush=True)
    if wrong:
        raise UserError(
            f"{len(wrong)} of {len(settings.recipes)} recipes are wrong: {', '.join(map(str, wrong))}. "
            "Fix what is listed above."
        )
