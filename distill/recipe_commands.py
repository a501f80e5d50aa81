"""Commands that take a recipe: RECIPE key=value ..., and perhaps --debug. Each imports what it runs when it runs."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from distill.choose.command import choose_arguments
from eval.rehash import rehash_argument

if TYPE_CHECKING:
    from distill.recipe import Recipe


def recipe_arguments(parser: argparse.ArgumentParser) -> None:
    """RECIPE key=value ..."""
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="a YAML file, see recipes/")
    override_argument(parser)
    debug_argument(parser)


def stage_arguments(parser: argparse.ArgumentParser) -> None:
    """RECIPE key=value ..., and perhaps --rehash."""
    recipe_arguments(parser)
    rehash_argument(parser)


def debug_argument(parser: argparse.ArgumentParser) -> None:
    """--debug."""
    parser.add_argument(
        "--debug",
        action="store_true",
        help="the same with a tiny random target and few steps, in <run>-debug: minutes on two cores",
    )


def cache_arguments(parser: argparse.ArgumentParser) -> None:
    """RECIPE key=value ... and perhaps --verify."""
    stage_arguments(parser)
    parser.add_argument(
        "--verify", action="store_true", help="compare the checksums of a finished cache; write nothing"
    )


def override_argument(parser: argparse.ArgumentParser) -> None:
    """key=value ..."""
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="replaces the recipe's value of a dotted key"
    )


def choosing_arguments(parser: argparse.ArgumentParser) -> None:
    """RECIPE key=value ..., --debug and what only this stage takes."""
    stage_arguments(parser)
    choose_arguments(parser)


def recipe_of(options: argparse.Namespace, *, weights: bool = True) -> "Recipe":
    """The recipe a command names, or that of its debug run; `weights` as in `begin_debug`."""
    from distill.recipe import load_recipe

    return load_recipe(*recipe_words(options, weights=weights))


def recipe_words(options: argparse.Namespace, *, weights: bool = True) -> tuple[Path, list[str]]:
    """The recipe file and the key=value words a command names, or the written-out recipe of its debug run."""
    if not options.debug:
        return options.recipe, options.overrides
    from distill.debug.files import begin_debug

    return begin_debug(options.recipe, options.overrides, weights=weights), []


def check(options: argparse.Namespace) -> None:
    """Print what the recipe would make and cost."""
    from distill.check import check_recipe

    print(check_recipe(recipe_of(options, weights=False)))


def choose(options: argparse.Namespace) -> None:
    """Rank shapes by predicted speed; the winner becomes a recipe."""
    from distill.choose.command import choose as choose_shape

    choose_shape(*recipe_words(options), options)


def masks(options: argparse.Namespace) -> None:
    """Train learned masks; the training processes load the recipe themselves."""
    from distill.stages import mask_stage

    mask_stage(*recipe_words(options))


def prune(options: argparse.Namespace) -> None:
    """Cut the undistilled draft out of the target."""
    from distill.stages import prune_stage

    prune_stage(recipe_of(options))


def generate(options: argparse.Namespace) -> None:
    """Let the target answer the prompts."""
    from distill.stages import generate_stage

    generate_stage(recipe_of(options))


def cache(options: argparse.Namespace) -> None:
    """Let the teacher read the answers, or verify what it left."""
    from distill.teacher_cache import stage

    (stage.verify_cache_stage if options.verify else stage.cache_stage)(recipe_of(options))


def export(options: argparse.Namespace) -> None:
    """Make the draft from the newest checkpoint."""
    from distill.stages import export_stage

    export_stage(recipe_of(options))


def distill(options: argparse.Namespace) -> None:
    """Train and export; the training processes load the recipe themselves."""
    from distill.stages import distill_stage

    distill_stage(*recipe_words(options))


def run_everything(options: argparse.Namespace) -> None:
    """All stages, skipping what is done."""
    from distill.stages import run_all

    run_all(*recipe_words(options))
