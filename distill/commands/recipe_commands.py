"""Commands that take a recipe: RECIPE key=value ..., and perhaps --debug. Each imports what it runs when it runs."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from architectures.errors import UserError
from architectures.files.rehash import rehash_argument
from architectures.pages.terminal import terminal
from distill.checkpoints.trust import trust_checkpoints, trust_option
from distill.choose.command import choose_arguments
from eval.profiling.option import profile_option, require_profile_folder

if TYPE_CHECKING:
    from distill.recipe.recipe import Recipe


class Named(NamedTuple):
    """The recipe a command names, and the file and words it is made from, which training processes read again."""

    recipe: "Recipe"
    path: Path
    overrides: list[str]


def recipe_arguments(parser: argparse.ArgumentParser) -> None:
    """RECIPE key=value ..."""
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="a YAML file, see recipes/")
    override_argument(parser)
    debug_argument(parser)


def check_arguments(parser: argparse.ArgumentParser) -> None:
    """RECIPE key=value ... and perhaps --device."""
    recipe_arguments(parser)
    parser.add_argument(
        "--device",
        metavar="NAME|FILE",
        help="tell hours on this device: one that was measured, a GPU whose figures are published, or a file of "
        "`python -m bench.gpu` (default: this machine's GPU, else its processor)",
    )


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


def training_arguments(parser: argparse.ArgumentParser) -> None:
    """What every stage takes, and --trust-checkpoints for what continues or reads a training."""
    stage_arguments(parser)
    trust_option(parser)


def distilling_arguments(parser: argparse.ArgumentParser) -> None:
    """What trainings take, and --profile."""
    training_arguments(parser)
    profile_option(parser, "a training step")


def trust_if_asked(options: argparse.Namespace) -> None:
    """Trust checkpoints from here on where the command line says so."""
    if options.trust_checkpoints:
        trust_checkpoints()


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
    training_arguments(parser)
    choose_arguments(parser)


def recipe_of(options: argparse.Namespace, *, weights: bool = True) -> "Recipe":
    """The recipe a command names, or that of its debug run; `weights` as in `begin_debug`."""
    from distill.recipe.recipe import load_recipe

    return load_recipe(*recipe_words(options, weights=weights))


def recipe_words(options: argparse.Namespace, *, weights: bool = True) -> tuple[Path, list[str]]:
    """The recipe file and the key=value words a command names, or the written-out recipe of its debug run."""
    if not options.debug:
        return options.recipe, options.overrides
    from distill.debug.files import begin_debug

    return begin_debug(options.recipe, options.overrides, weights=weights), []


@contextmanager
def own_run(options: argparse.Namespace) -> Iterator[Named]:
    """The recipe a command names, in a run that no other command works in meanwhile.

    Raises:
        UserError: If the recipe is wrong, its folder may not be a run's, or another process works in it.
    """
    from distill.recipe.recipe import load_recipe
    from distill.run.run_folder import owned_run

    path, overrides = recipe_words(options)
    recipe = load_recipe(path, overrides)
    with owned_run(recipe):
        yield Named(recipe, path, overrides)


def check(options: argparse.Namespace) -> None:
    """Print what the recipe would make and cost."""
    from distill.checking.check import check_recipe

    print(terminal(*check_recipe(recipe_of(options, weights=False), options.device)))


def choose(options: argparse.Namespace) -> None:
    """Rank shapes by predicted speed; the winner becomes a recipe. Or weigh them by floors, in no run at all."""
    from distill.choose.command import choose as choose_shape

    if options.within is not None and options.budget is None:
        raise UserError("--within: is a number of minutes for --budget FILE. Name both, or neither.")
    if options.floors is not None:
        from distill.choose.floors import choose_by_floors

        choose_by_floors(recipe_of(options, weights=False), options)
        return
    trust_if_asked(options)
    with own_run(options) as named:
        if options.budget is not None:
            from distill.choose.budget import choose_by_budget

            choose_by_budget(named.recipe, options)
            return
        choose_shape(named.path, named.overrides, options)


def masks(options: argparse.Namespace) -> None:
    """Train learned masks; the training processes load the recipe themselves."""
    from distill.stages.running import mask_stage

    trust_if_asked(options)
    with own_run(options) as named:
        mask_stage(named.path, named.overrides)


def prune(options: argparse.Namespace) -> None:
    """Cut the undistilled draft out of the target."""
    from distill.stages.running import prune_stage

    with own_run(options) as named:
        prune_stage(named.recipe)


def generate(options: argparse.Namespace) -> None:
    """Let the target answer the prompts."""
    from distill.stages.running import generate_stage

    with own_run(options) as named:
        generate_stage(named.recipe)


def cache(options: argparse.Namespace) -> None:
    """Let the teacher read the answers, or verify what it left."""
    from distill.caching import stage

    if options.verify:
        stage.verify_cache_stage(recipe_of(options))
        return
    with own_run(options) as named:
        stage.cache_stage(named.recipe)


def distill(options: argparse.Namespace) -> None:
    """Train and export; the training processes load the recipe themselves."""
    from distill.stages.running import distill_stage

    trust_if_asked(options)
    profile_words = [] if options.profile is None else [f"--profile={options.profile}"]
    if options.profile is not None:
        require_profile_folder(options.profile)
    with own_run(options) as named:
        distill_stage(named.path, named.overrides, *profile_words)


def score(options: argparse.Namespace) -> None:
    """Score the draft, and every checkpoint of its training where that is asked for."""
    from distill.stages.running import checkpoints_stage, eval_stage

    trust_if_asked(options)
    with own_run(options) as named:
        (checkpoints_stage if options.checkpoints else eval_stage)(named.recipe)


def run_everything(options: argparse.Namespace) -> None:
    """All stages, skipping what is done."""
    from distill.stages.running import run_all

    trust_if_asked(options)
    with own_run(options) as named:
        run_all(named.path, named.overrides)
