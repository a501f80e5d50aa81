"""`widedraft choose`: its arguments, and what it does. Imports torch only when it runs."""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from architectures.errors import UserError
from architectures.pages.blocks import Block
from architectures.pages.markdown import markdown
from distill.choose.given_alphas import TakenAlpha, known_alpha
from distill.choose.vocabularies import vocabulary_size
from distill.recipe.recipe import Recipe, load_recipe, save_recipe

if TYPE_CHECKING:
    from distill.choose.candidates import Candidate
    from distill.estimates.coverage import Said
    from eval.acceptance.estimates import Resampling
    from eval.predictions.ranking import Ranked
    from eval.records.steps import ScoredLatency

REPEATS = 20  # of the step times of untrained drafts
DURATION = "100ba"
AT_THE_END = ("distill.eval_interval=1dur", "distill.save_interval=1dur", "distill.eval_first=false")


def choose_arguments(parser: argparse.ArgumentParser) -> None:
    """What comes after RECIPE key=value ..."""
    parser.add_argument(
        "--layers", type=int, nargs="+", default=[], metavar="N", help="of the candidates (default: 1 2 3 4 6 8 12)"
    )
    parser.add_argument(
        "--vocabulary",
        type=vocabulary_size,
        nargs="+",
        default=[],
        metavar="N|all",
        help="token ids that candidates can say, each with each number of layers (default: as the recipe has it)",
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
        metavar="N[xK]=A",
        help="train nothing: N layers that say K ids have a token accepted with chance A, for every candidate",
    )
    acceptance.add_argument(
        "--untrained", action="store_true", help="stop after step times: what each could do at most"
    )
    acceptance.add_argument(
        "--floors",
        metavar="NAME|FILE",
        help="time and train nothing: weigh shapes by the least that steps can take on this device, as --device of "
        "`widedraft check` names it",
    )
    acceptance.add_argument(
        "--budget",
        type=Path,
        metavar="FILE",
        help="train nothing: what answers, readings, text and minutes make each candidate pay, by the law of the "
        "trainings in this file of `python -m bench.budget`",
    )
    parser.add_argument(
        "--within", type=minutes, metavar="MINUTES", help="with --budget: the fastest mix that takes no longer"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the recipe of the winner (default: <run>/choose/recipe.yaml)"
    )


def minutes(word: str) -> float:
    """A number of minutes above none."""
    try:
        number = float(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{word!r} is no number of minutes") from None
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{word!r}: nothing can be made in so many minutes")
    return number


def choose(path: Path, overrides: Sequence[str], options: argparse.Namespace) -> None:
    """Print what was found, and write the recipe of the winner.

    Args:
        path: A recipe.
        overrides: Its key=value words.
        options: Those of `choose_arguments`.
    """
    from distill.choose.given_alphas import alphas_of
    from distill.choose.page import prospects_page
    from distill.choose.vocabulary_page import vocabulary_page
    from distill.run.stage_folders import begin_stage
    from eval.predictions.ranking import prospect, step_times

    require_file(options.out, path)
    recipe = load_recipe(path, overrides)
    short = load_recipe(path, [*overrides, f"distill.max_duration={options.duration}", *AT_THE_END])
    target = begin_stage(recipe)
    candidates = candidates_in(target, short, options)
    said = said_for(recipe, candidates, target)
    alphas = alphas_of(options.alpha, candidates, said) if options.alpha else {}
    latency = measured_steps(recipe, target, candidates)
    prospects = {name: prospect(steps) for name, steps in step_times(latency).items()}
    tell(prospects_page(candidates, prospects), *vocabulary_page(candidates, prospects, said))
    hopeful = [one for one in candidates if prospects[one.name].least_alpha is not None]
    if options.untrained or not hopeful:
        return
    if alphas:
        ranked = ranked_as_given(recipe, hopeful, latency, alphas)
    else:
        ranked = ranked_by_training(recipe, hopeful, options.duration)
        if said is None and (written := said_for(recipe, candidates, target)) is not None:
            tell(*vocabulary_page(candidates, prospects, written))
    out = options.out or Path(recipe.run_dir) / "choose" / "recipe.yaml"
    save_recipe(chosen_recipe(recipe, hopeful, ranked), out)
    print(f"\n{out}: the recipe of {ranked[0].draft}. Next: widedraft run {out}")


def require_file(out: Path | None, path: Path) -> None:
    """Raise UserError unless the winner's recipe can be written there."""
    if out is not None and out.is_dir():
        raise UserError(f"--out {out}: is a folder. Name a file in it.")
    if out is not None and out.resolve() == path.resolve():
        raise UserError(f"--out {out}: is the recipe that is read. Name another file.")


def said_for(recipe: Recipe, candidates: Sequence["Candidate"], target: Path) -> "Said | None":
    """What the run's answers say; None where there are none, or no candidate says what they say most.

    Raises:
        UserError: If a candidate's ids cannot be had.
    """
    from distill.choose.given_alphas import require_ids
    from distill.choose.vocabulary_page import ranked_by_answers
    from distill.estimates.coverage import answers_said
    from distill.vocabulary.choice import tokens_in

    if all(one.recipe.architecture.vocabulary is None for one in candidates):
        return None
    tokens = tokens_in(target, candidates[0].shape.vocab)
    require_ids(candidates, target, tokens)
    return answers_said(recipe, tokens) if ranked_by_answers(candidates) else None


def tell(*blocks: Block) -> None:
    """Print a page, and wait for nothing."""
    print(markdown(*blocks, level=2), flush=True)


def ranked_by_training(recipe: Recipe, candidates: Sequence["Candidate"], duration: str) -> list["Ranked"]:
    """Train, score and print them."""
    from distill.choose.page import after_training, ranking_page
    from distill.choose.trials import score_candidates, train_candidates
    from eval.predictions.ranking import ranking

    temperature = recipe.eval.temperature[0]
    drafts = train_candidates(recipe, candidates)
    card = score_candidates(recipe, drafts)
    ranked = ranking(card.rows_at(temperature), card.latency, card.settings.resampling)
    tell(ranking_page(ranked, after_training(duration, temperature)))
    return ranked


def ranked_as_given(
    recipe: Recipe, candidates: Sequence["Candidate"], latency: "ScoredLatency", alphas: Mapping[str, TakenAlpha]
) -> list["Ranked"]:
    """Print them with the acceptance that was given."""
    from distill.choose.given_alphas import scaled_sentences
    from distill.choose.page import GIVEN_ALPHAS, ranking_page
    from eval.predictions.ranking import ranking_of_alphas

    taken = {one.name: alphas[one.name] for one in candidates}
    by_name = {name: each.alpha for name, each in taken.items()}
    ranked = ranking_of_alphas(latency, by_name, resampling_of(recipe))
    tell(ranking_page(ranked, GIVEN_ALPHAS), *scaled_sentences(taken))
    return ranked


def resampling_of(recipe: Recipe) -> "Resampling":
    from eval.acceptance.estimates import Resampling

    return Resampling(recipe.eval.confidence, recipe.eval.num_resamples, recipe.seed)


def candidates_in(target: Path, recipe: Recipe, options: argparse.Namespace) -> list["Candidate"]:
    """The shapes that were asked for, to be cut out of the target in a folder, or out of the recipe's own source."""
    from architectures.shapes.shape import Shape
    from architectures.targets.target import read_config
    from distill.choose.candidates import candidates_of
    from distill.run.stage_inputs import source_folder

    folders = (source_folder(recipe) or target, target)
    source, teacher = (Shape.from_config(read_config(each), where=str(each / "config.json")) for each in folders)
    layers = options.layers or [each.layers for each in options.alpha]
    named = dict.fromkeys(each.size for each in options.alpha if each.size is not None)
    sizes = options.vocabulary or list(named)
    return candidates_of(recipe, replace(source, vocab=teacher.vocab), layers, options.most_parameters, sizes)


def measured_steps(recipe: Recipe, target: Path, candidates: Sequence["Candidate"]) -> "ScoredLatency":
    """Step times of the target and of every candidate, which no one trained, as a scorecard holds them."""
    from distill.expected_time.floors import CONTEXT
    from eval.checks.built_in import PROMPTS
    from eval.latency.grid import repeated
    from eval.latency.machine import torch_threads
    from eval.latency.measure import measure_latency, timing_ticks
    from eval.latency.steps import Setting
    from eval.latency.untrained import untrained_models
    from eval.models.loading import load_model, load_tokenizer
    from eval.scorecard.record import scored_latency

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
    return scored_latency(latency)


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
