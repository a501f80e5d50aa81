"""`widedraft choose`: what it does. Imports torch only when it runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from architectures.errors import UserError
from architectures.pages.blocks import Block
from architectures.pages.markdown import markdown
from distill.choose.shapes.asked import candidates_in
from distill.choose.shapes.given_alphas import TakenAlpha
from distill.choose.shapes.settings import ChooseSettings
from distill.choose.steps.timed import measured_steps, resampling_of
from distill.recipe.recipe import Recipe, load_recipe, save_recipe

if TYPE_CHECKING:
    from distill.choose.shapes.candidates import Candidate
    from distill.estimates.coverage import IdCounts
    from distill.run.run import Run
    from eval.predictions.ranking import Ranked
    from eval.records.steps import ScoredLatency

AT_THE_END = ("distill.eval_interval=1dur", "distill.save_interval=1dur", "distill.eval_first=false")


def choose(path: Path, overrides: Sequence[str], settings: ChooseSettings) -> None:
    """Print what was found, and write the recipe of the winner.

    Args:
        path: A recipe.
        overrides: Its key=value words.
        settings: Which shapes, and how they are ranked.
    """
    from distill.choose.ranked.page import prospects_page
    from distill.choose.ranked.vocabulary_page import vocabulary_page
    from distill.choose.shapes.candidates import trials_folder
    from distill.choose.shapes.given_alphas import alphas_of
    from distill.run.run import RECIPE_NAME, Run
    from distill.run.stage import begin
    from eval.predictions.ranking import prospect, step_times

    require_file(settings.out, path)
    recipe = load_recipe(path, overrides)
    short = load_recipe(path, [*overrides, f"distill.max_duration={settings.duration}", *AT_THE_END])
    run = Run.of(recipe)
    begin(run)
    target = run.target
    candidates = candidates_in(target, short, settings)
    id_counts = id_counts_for(recipe, candidates, target)
    alphas = alphas_of(settings.alphas, candidates, id_counts) if settings.alphas else {}
    latency = measured_steps(recipe, target, candidates)
    prospects = {name: prospect(steps) for name, steps in step_times(latency).items()}
    tell(prospects_page(candidates, prospects), *vocabulary_page(candidates, prospects, id_counts))
    hopeful = [candidate for candidate in candidates if prospects[candidate.name].least_alpha is not None]
    if settings.untrained or not hopeful:
        return
    if alphas:
        ranked = ranked_as_given(recipe, hopeful, latency, alphas)
    else:
        ranked = ranked_by_training(run, hopeful, settings.duration)
        if id_counts is None and (written := id_counts_for(recipe, candidates, target)) is not None:
            tell(*vocabulary_page(candidates, prospects, written))
    out = settings.out or trials_folder(run) / RECIPE_NAME
    save_recipe(chosen_recipe(recipe, hopeful, ranked), out)
    print(f"\n{out}: the recipe of {ranked[0].draft}. Next: widedraft run {out}")


def require_file(out: Path | None, path: Path) -> None:
    """Raise UserError unless the winner's recipe can be written there."""
    if out is not None and out.is_dir():
        raise UserError(f"--out {out}: is a folder. Name a file in it.")
    if out is not None and out.resolve() == path.resolve():
        raise UserError(f"--out {out}: is the recipe that is read. Name another file.")


def id_counts_for(recipe: Recipe, candidates: Sequence["Candidate"], target: Path) -> "IdCounts | None":
    """Of the run's answers; None where there are none, or no candidate outputs what is most frequent in them.

    Raises:
        UserError: If a candidate's ids cannot be had.
    """
    from distill.choose.ranked.vocabulary_page import ranked_by_answers
    from distill.choose.shapes.given_alphas import require_ids
    from distill.estimates.coverage import id_counts_of_answers
    from distill.vocabulary.output_ids import tokens_in

    if all(candidate.recipe.architecture.vocabulary is None for candidate in candidates):
        return None
    tokens = tokens_in(target, candidates[0].shape.vocab)
    require_ids(candidates, target, tokens)
    return id_counts_of_answers(recipe, tokens) if ranked_by_answers(candidates) else None


def tell(*blocks: Block) -> None:
    """Print a page, and wait for nothing."""
    print(markdown(*blocks, level=2), flush=True)


def ranked_by_training(run: "Run", candidates: Sequence["Candidate"], duration: str) -> list["Ranked"]:
    """Train, score and print them."""
    from distill.choose.ranked.page import after_training, ranking_page
    from distill.choose.trainings.trials import score_candidates, train_candidates
    from eval.predictions.ranking import ranking

    temperature = run.recipe.eval.temperatures[0]
    drafts = train_candidates(run, candidates)
    card = score_candidates(run, drafts)
    ranked = ranking(card.rows_at(temperature), card.latency, card.settings.resampling)
    tell(ranking_page(ranked, after_training(duration, temperature)))
    return ranked


def ranked_as_given(
    recipe: Recipe, candidates: Sequence["Candidate"], latency: "ScoredLatency", alphas: Mapping[str, TakenAlpha]
) -> list["Ranked"]:
    """Print them with the acceptance that was given."""
    from distill.choose.ranked.page import GIVEN_ALPHAS, ranking_page
    from distill.choose.shapes.given_alphas import scaled_sentences
    from eval.predictions.ranking import ranking_of_alphas

    taken = {candidate.name: alphas[candidate.name] for candidate in candidates}
    by_name = {name: each.alpha for name, each in taken.items()}
    ranked = ranking_of_alphas(latency, by_name, resampling_of(recipe))
    tell(ranking_page(ranked, GIVEN_ALPHAS), *scaled_sentences(taken))
    return ranked


def chosen_recipe(recipe: Recipe, candidates: Sequence["Candidate"], ranked: Sequence["Ranked"]) -> Recipe:
    """The recipe as it was given, with the shape of the winner, in a run of its own."""
    [winner] = [candidate for candidate in candidates if candidate.name == ranked[0].draft]
    name = f"{recipe.run_name}-{winner.name}"
    return recipe.model_copy(
        update={
            "architecture": winner.recipe.architecture,
            "run_name": name,
            "run_dir": str(Path(recipe.run_dir).with_name(name)),
        }
    )
