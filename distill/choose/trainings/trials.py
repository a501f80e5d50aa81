"""Short trainings of candidates, each a run of its own in <run>/choose, on the answers of the run.

Where several sizes of the vocabulary are asked for, each depth is trained once, with its whole head, and its small
heads are cut out of what was trained. That takes one training for each depth and not one for each candidate, and the
candidates of a depth differ by their heads alone. In equal steps it is no worse than training each: docs/choosing.md
has what was measured. The recipe that is chosen trains its small head from the start.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from architectures.shapes.section import ArchitectureConfig
from distill.choose.shapes.candidates import Candidate, depth_name, trials_folder
from distill.recipe.recipe import Recipe
from distill.run.progressive import share_answers, with_imported_target
from distill.run.run import Run
from distill.run.run_folder import owned_run
from distill.run.stage import begin
from distill.stages.processes import distill_stage
from distill.stages.running import cache_if_asked, generate_stage, prune_stage, timed
from distill.stages.table import eval_prompts

if TYPE_CHECKING:
    from eval.records.scorecard import Scorecard


def train_candidates(run: Run, candidates: Sequence[Candidate]) -> dict[str, Path]:
    """Train what the candidates need, and cut small heads where sizes are compared; what is finished is left as it is.

    Args:
        run: That they belong to.
        candidates: Each in a folder of its own.

    Returns:
        The folder of each one's weights, by name.
    """
    timed("generate", lambda: generate_stage(run))
    cache_if_asked(run)
    trials = trials_of(candidates)
    for number, recipe in enumerate(trials.values(), start=1):
        print(f"== {name_of(recipe)}, {number} of {len(trials)}", flush=True)
        trial = trial_run(run, recipe)
        with owned_run(trial):
            share_answers(run, trial)
            timed("prune", partial(prune_stage, trial))
            timed("distill", partial(distill_stage, trial.recipe_file, []))
    return {each.name: weights_of(run, each, trials[each.shape.layers]) for each in candidates}


def trials_of(candidates: Sequence[Candidate]) -> dict[int, Recipe]:
    """What is trained, by layers: the candidates, or with the whole head where they have heads of several sizes."""
    same_size = len({candidate.shape.head_rows for candidate in candidates}) == 1
    return {
        candidate.shape.layers: candidate.recipe if same_size else whole_recipe(candidate) for candidate in candidates
    }


def whole_recipe(candidate: Candidate) -> Recipe:
    """The recipe of the candidate of the same depth that can output everything."""
    name = depth_name(candidate.shape.layers)
    return candidate.recipe.model_copy(
        update={
            "run_name": candidate.recipe.run_name.removesuffix(candidate.name) + name,
            "run_dir": str(Path(candidate.recipe.run_dir).with_name(name)),
            "architecture": candidate.recipe.architecture.model_copy(update={"vocabulary": None}),
        }
    )


def name_of(trial: Recipe) -> str:
    return Path(trial.run_dir).name


def weights_of(run: Run, candidate: Candidate, trial: Recipe) -> Path:
    """The folder of a candidate's weights: the draft that was trained, or what is cut out of it now."""
    draft = Run.of(trial).draft.path
    if trial == candidate.recipe:
        return draft
    print(f"== {candidate.name}, cut out of {name_of(trial)}", flush=True)
    cut = trial_run(run, cut_recipe(candidate, draft))
    with owned_run(cut):
        share_answers(run, cut)
        timed("prune", partial(prune_stage, cut))
    return cut.init.path


def cut_recipe(candidate: Candidate, draft: Path) -> Recipe:
    """The recipe of a candidate that keeps everything of a trained draft but rows of its head."""
    vocabulary = candidate.recipe.architecture.vocabulary
    wanted = ArchitectureConfig(
        layers=candidate.shape.layers, method="first_last", source=str(draft), vocabulary=vocabulary
    )
    return candidate.recipe.model_copy(update={"architecture": wanted})


def trial_run(run: Run, trial: Recipe) -> Run:
    """The run of a trial, with the imported target and the scores of the run it belongs to."""
    architecture = trial.architecture.model_copy(update={"scores": str(run.scores.path)})
    return Run.of(with_imported_target(trial.model_copy(update={"architecture": architecture}), run))


def score_candidates(run: Run, drafts: Mapping[str, Path]) -> "Scorecard":
    """One scorecard of all drafts, in <run>/choose/eval: the same prompts, step times taken in turns."""
    from eval.scorecard import score_drafts

    folder, recipe = trials_folder(run) / "eval", run.recipe
    config = recipe.eval.model_copy(update={"latency_batch_sizes": (), "policy_prompts": 0})  # ranked alone, at batch 1
    begin(run)
    return score_drafts(run.target, drafts, eval_prompts(run), config, folder, seed=recipe.seed)
