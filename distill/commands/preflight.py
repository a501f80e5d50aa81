"""`widedraft preflight` of a folder or of a recipe. No torch."""

from pathlib import Path

from architectures.engines.command import NAMES, PreflightSettings, preflight_folders
from architectures.errors import UserError
from architectures.pages.terminal import terminal
from distill.recipe.words import RECIPE_SUFFIXES, named_too_many


def preflight(settings: PreflightSettings) -> None:
    """Print what engines say of a draft, or of the shape of a recipe; exit code 1 if one of them does not serve it."""
    if Path(settings.draft).suffix.lower() in RECIPE_SUFFIXES and not Path(settings.draft).is_dir():
        preflight_recipe(settings)
        return
    if settings.overrides:
        raise UserError(
            f"{' '.join(settings.overrides)}: only a recipe has values to change, and {settings.draft} is a draft. "
            "Leave them out, or name a recipe (.yaml)."
        )
    preflight_folders(settings)


def preflight_recipe(settings: PreflightSettings) -> None:
    """The same of the draft that a recipe asks for, which need not be there."""
    from architectures.engines.page import preflight_page
    from distill.check import planned_pair, planned_shapes
    from distill.recipe.recipe import load_recipe

    if (problem := named_too_many(settings.overrides)) is not None:
        raise UserError(f"key=value {problem}")
    if settings.target is not None or settings.revision != "main":
        raise UserError(f"{settings.draft}: a recipe names its target. Leave --target and --revision out.")
    recipe = load_recipe(settings.draft, settings.overrides)
    pair = planned_pair(
        recipe, planned_shapes(recipe).draft, tensor_parallel=settings.tensor_parallel, lookahead=settings.lookahead
    )
    engines = settings.engines or recipe.export.engines or NAMES
    page, served = preflight_page(tuple(dict.fromkeys(engines)), pair)
    print(terminal(*page))
    if not served:
        raise SystemExit(1)
