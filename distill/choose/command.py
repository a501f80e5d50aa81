"""`widedraft choose`: its arguments, and what it does. Imports torch only when it runs."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from architectures.errors import UserError
from distill.recipe import Recipe, load_recipe, save_recipe

if TYPE_CHECKING:
    from distill.choose.candidates import Candidate
    from eval.choice import Prospect, Ranked

CONTEXT, REPEATS = 128, 20  # of the step times of untrained drafts
AT_THE_END = ("distill.eval_interval=1dur", "distill.save_interval=1dur", "distill.eval_first=false")


def choose_arguments(parser: argparse.ArgumentParser) -> None:
    """What comes after RECIPE key=value ..."""
    parser.add_argument(
        "--layers", type=int, nargs="+", default=[], metavar="N", help="of the candidates (default: 1 2 3 4 6 8 12)"
    )
    parser.add_argument("--most-parameters", type=int, metavar="N", help="no candidate has more")
    parser.add_argument(
        "--duration",
        default="100ba",
        metavar="T",
        help="of each short training, as distill.max_duration (default: 100ba)",
    )
    parser.add_argument("--untrained", action="store_true", help="stop after step times: what each could do at most")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the recipe of the winner (default: <run>/choose/recipe.yaml)"
    )


def choose(path: Path, overrides: Sequence[str], options: argparse.Namespace) -> None:
    """Print what was found, and write the recipe of the winner.

    Args:
        path: A recipe.
        overrides: Its key=value words.
        options: Those of `choose_arguments`.
    """
    from distill.choose.page import prospects_page, ranking_page
    from distill.choose.trials import score_candidates, train_candidates
    from distill.stage_folders import begin_stage
    from eval.choice import ranking

    if options.out is not None and options.out.is_dir():
        raise UserError(f"--out {options.out}: is a folder. Name a file in it.")
    recipe = load_recipe(path, overrides)
    short = load_recipe(path, [*overrides, f"distill.max_duration={options.duration}", *AT_THE_END])
    target = begin_stage(recipe)
    candidates = candidates_in(target, short, options)
    prospects = measured_prospects(recipe, target, candidates)
    print(prospects_page(candidates, prospects), flush=True)
    hopeful = [one for one in candidates if prospects[one.name].least_alpha is not None]
    if options.untrained or not hopeful:
        return
    train_candidates(recipe, hopeful)
    ranked = ranking(score_candidates(recipe, hopeful), recipe.eval.temperature[0])
    print(ranking_page(ranked, recipe.eval.temperature[0], options.duration))
    out = options.out or Path(recipe.run_dir) / "choose" / "recipe.yaml"
    save_recipe(chosen_recipe(recipe, hopeful, ranked), out)
    print(f"\n{out}: the recipe of {ranked[0].draft}. Next: widedraft run {out}")


def candidates_in(target: Path, recipe: Recipe, options: argparse.Namespace) -> list["Candidate"]:
    """The shapes that were asked for, to be cut out of the target in a folder, or out of the recipe's own source."""
    from architectures.shapes import Shape
    from architectures.target import read_config, resolve_checkpoint
    from distill.choose.candidates import candidates_of

    cut_from = recipe.architecture.source
    folder = target if cut_from is None else resolve_checkpoint(cut_from)
    source = Shape.from_config(read_config(folder), where=str(folder / "config.json"))
    return candidates_of(recipe, source, options.layers, options.most_parameters)


def measured_prospects(recipe: Recipe, target: Path, candidates: Sequence["Candidate"]) -> dict[str, "Prospect"]:
    """What every candidate could do at most, by the steps of drafts that no one trained."""
    from eval.acceptance import Resampling
    from eval.choice import prospect
    from eval.latency.grid import repeated
    from eval.latency.machine import torch_threads
    from eval.latency.measure import measure_latency
    from eval.latency.steps import Setting
    from eval.latency.untrained import untrained_models
    from eval.models import load_model, load_tokenizer
    from eval.pair.opened import PROMPTS

    config, names = recipe.eval, [one.name for one in candidates]
    text_ids = [token for prompt in PROMPTS for token in load_tokenizer(target)(prompt)["input_ids"]]
    with torch_threads(config.num_threads):
        model = load_model(target, dtype=config.dtype)
        drafts = dict(zip(names, untrained_models(model, [one.shape for one in candidates]), strict=True))
        first, last = config.lookahead
        latency = measure_latency(
            model,
            drafts,
            Setting(repeated(text_ids, CONTEXT)),
            lookaheads=range(first, last + 1),
            repeats=REPEATS,
            resampling=Resampling(config.confidence, config.num_resamples, recipe.seed),
        )
    return {name: prospect(latency.step_times(name)) for name in names}


def chosen_recipe(recipe: Recipe, candidates: Sequence["Candidate"], ranked: Sequence["Ranked"]) -> Recipe:
    """The recipe as it was given, with the shape of the winner, in a run of its own."""
    [winner] = [one for one in candidates if one.name == ranked[0].draft]
    name = f"{recipe.run_name}-{winner.name}"
    return recipe.model_copy(
        update={
            "architecture": winner.recipe.architecture,
            "run_name": name,
            "run_dir": str(Path(recipe.run_dir).with_name(name)),
        }
    )
