"""`widedraft preflight` of a folder or of a recipe. No torch."""

import argparse
from pathlib import Path

from architectures.engines.command import (
    engines_asked,
    preflight_arguments,
    preflight_folders,
    require_sensible,
)
from architectures.errors import UserError
from architectures.pages.terminal import terminal
from distill.commands.recipe_commands import override_argument

RECIPE_SUFFIXES = (".yaml", ".yml")


def recipe_or_folder_arguments(parser: argparse.ArgumentParser) -> None:
    """DRAFT --target T, or RECIPE key=value ..., and more."""
    preflight_arguments(parser)
    override_argument(parser)


def preflight(options: argparse.Namespace) -> None:
    """Print what engines say of a draft, or of the shape of a recipe; exit code 1 if one of them does not serve it."""
    require_sensible(options)
    if Path(options.draft).suffix.lower() in RECIPE_SUFFIXES and not Path(options.draft).is_dir():
        preflight_recipe(options)
        return
    if options.overrides:
        raise UserError(
            f"{' '.join(options.overrides)}: only a recipe has values to change, and {options.draft} is a draft. Leave "
            "them out, or name a recipe (.yaml)."
        )
    preflight_folders(options)


def preflight_recipe(options: argparse.Namespace) -> None:
    """The same of the draft that a recipe asks for, which need not be there."""
    from architectures.engines.page import preflight_page
    from distill.checking.check import planned
    from distill.checking.served_shape import planned_pair
    from distill.recipe.recipe import load_recipe

    if options.target is not None or options.revision != "main":
        raise UserError(f"{options.draft}: a recipe names its target. Leave --target and --revision out.")
    recipe = load_recipe(options.draft, options.overrides)
    pair = planned_pair(
        recipe, planned(recipe).draft, tensor_parallel=options.tensor_parallel, lookahead=options.lookahead
    )
    engines = tuple(options.engine or recipe.export.engines) or engines_asked(options)
    page, served = preflight_page(tuple(dict.fromkeys(engines)), pair)
    print(terminal(*page))
    if not served:
        raise SystemExit(1)
