"""`widedraft choose`: its arguments, and what it does. Imports torch only when it runs."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from architectures.errors import UserError
from distill.recipe import Recipe, load_recipe, save_recipe

if TYPE_CHECKING:
    from distill.choose.candidates import Candidate
    from eval.acceptance import Resampling
    from eval.choice import Ranked

CONTEXT, REPEATS = 128, 20  # of the step times of untrained drafts
DURATION = "100ba"
AT_THE_END = ("distill.eval_interval=1dur", "distill.save_interval=1dur", "distill.eval_first=false")


def choose_arguments(parser: argparse.ArgumentParser) -> None:
    """What comes after RECIPE key=value ..."""
    parser.add_argument(
        "--layers", type=int, nargs="+", default=[], metavar="N", help="of the candidates (default: 1 2 3 4 6 8 12)"
    )
    parser.add_argument("--most-parameters", type=int, metavar="N", help="no candidate has more")
    acceptance = parser.add_mutually_exclusive_group()
    acceptance.add_argument(
        "--duration",
        default=DURATION,
        metavar="T",
        help=f"of each short training, as distill.max_duration (default: {DURATION})",
    )
    acceptance.add_argument(
        "--alpha",
        type=known_alpha,
        nargs="+",
        default=[],
        metavar="N=A",
        help="train nothing: N layers have a token accepted with chance A, for every candidate",
    )
    acceptance.add_argument(
        "--untrained", action="store_true", help="stop after step times: what each could do at most"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the recipe of the winner (default: <run>/choose/recipe.yaml)"
    )


def known_alpha(word: str) -> tuple[int, float]:
    """Layers and acceptance, of a word such as 4=0.35."""
    layers, _, alpha = word.partition("=")
    try:
        found = int(layers), float(alpha)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{word!r} is not LAYERS=ALPHA, such as 4=0.35") from None
    if not 0 <= found[1] <= 1:
        raise argparse.ArgumentTypeError(f"{word!r}: an acceptance lies between 0 and 1")
    return found


def choose(path: Path, overrides: Sequence[str], options: argparse.Namespace) -> None:
    """Print what was found, and write the recipe of the winner.

    Args:
        path: A recipe.
        overrides: Its key=value words.
        options: Those of `choose_arguments`.
    """
    from distill.choose.page import prospects_page
    from distill.stage_folders import begin_stage
    from eval.choice import prospect, step_times

    if options.out is not None and options.out.is_dir():
        raise UserError(f"--out {options.out}: is a folder. Name a file in it.")
    if options.out is not None and options.out.resolve() == path.resolve():
        raise UserError(f"--out {options.out}: is the recipe that is read. Name another file.")
    recipe = load_recipe(path, overrides)
    short = load_recipe(path, [*overrides, f"distill.max_duration={options.duration}", *AT_THE_END])
    alphas, target = dict(options.alpha), begin_stage(recipe)
    candidates = candidates_in(target, short, options.layers or sorted(alphas), options.most_parameters)
    require_alphas(options.alpha, candidates)
    latency = measured_steps(recipe, target, candidates)
    prospects = {name: prospect(steps) for name, steps in step_times(latency).items()}
    print(prospects_page(candidates, prospects), flush=True)
    hopeful = [one for one in candidates if prospects[one.name].least_alpha is not None]
    if options.untrained or not hopeful:
        return
    ranked = (
        ranked_as_given(recipe, hopeful, latency, alphas)
        if alphas
        else ranked_by_training(recipe, hopeful, options.duration)
    )
    out = options.out or Path(recipe.run_dir) / "choose" / "recipe.yaml"
    save_recipe(chosen_recipe(recipe, hopeful, ranked), out)
    print(f"\n{out}: the recipe of {ranked[0].draft}. Next: widedraft run {out}")


def require_alphas(given: Sequence[tuple[int, float]], candidates: Sequence["Candidate"]) -> None:
    """Raise UserError unless acceptance is given for every candidate once, and for no other, or for none."""
    layers, depths = sorted(layers for layers, _ in given), sorted(one.shape.layers for one in candidates)
    if given and layers != depths:
        raise UserError(f"--alpha is given for {layers} layers, and the candidates have {depths}. Give each one once.")


def ranked_by_training(recipe: Recipe, candidates: Sequence["Candidate"], duration: str) -> list["Ranked"]:
    """Train, score and print them."""
    from distill.choose.page import after_training, ranking_page
    from distill.choose.trials import score_candidates, train_candidates
    from eval.choice import ranking

    temperature = recipe.eval.temperature[0]
    train_candidates(recipe, candidates)
    ranked = ranking(score_candidates(recipe, candidates), temperature)
    print(ranking_page(ranked, after_training(duration, temperature)))
    return ranked


def ranked_as_given(
    recipe: Recipe, candidates: Sequence["Candidate"], latency: dict[str, Any], alphas: Mapping[int, float]
) -> list["Ranked"]:
    """Print them with the acceptance that was given."""
    from distill.choose.page import GIVEN_ALPHAS, ranking_page
    from eval.choice import ranking_of_alphas

    by_name = {one.name: alphas[one.shape.layers] for one in candidates}
    ranked = ranking_of_alphas(latency, by_name, resampling_of(recipe))
    print(ranking_page(ranked, GIVEN_ALPHAS))
    return ranked


def resampling_of(recipe: Recipe) -> "Resampling":
    """How intervals are made."""
    from eval.acceptance import Resampling

    return Resampling(recipe.eval.confidence, recipe.eval.num_resamples, recipe.seed)


def candidates_in(
    target: Path, recipe: Recipe, layers: Sequence[int], most_parameters: int | None
) -> list["Candidate"]:
    """The shapes that were asked for, to be cut out of the target in a folder, or out of the recipe's own source."""
    from architectures.shapes import Shape
    from architectures.target import read_config
    from distill.choose.candidates import candidates_of
    from distill.stage_inputs import source_folder

    folders = (source_folder(recipe) or target, target)
    source, teacher = (Shape.from_config(read_config(each), where=str(each / "config.json")) for each in folders)
    return candidates_of(recipe, replace(source, vocab=teacher.vocab), layers, most_parameters)


def measured_steps(recipe: Recipe, target: Path, candidates: Sequence["Candidate"]) -> dict[str, Any]:
    """Step times of the target and of every candidate, which no one trained, as a scorecard holds them."""
    from eval.latency.grid import repeated
    from eval.latency.machine import torch_threads
    from eval.latency.measure import measure_latency, timing_ticks
    from eval.latency.steps import Setting
    from eval.latency.untrained import untrained_models
    from eval.models import load_model, load_tokenizer
    from eval.pair.built_in import PROMPTS
    from eval.scorecard.record import latency_record

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
            repetitions=timing_ticks(REPEATS),
            resampling=resampling_of(recipe),
        )
    return latency_record(latency)


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
