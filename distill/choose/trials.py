"""Short trainings of candidates, each a run of its own in <run>/choose, on the answers of the run.

Where several sizes of the vocabulary are asked for, each depth is trained once, with its whole head, and its small
heads are cut out of what was trained. That takes one training for each depth and not one for each candidate, and the
candidates of a depth differ by their heads alone. In equal steps it is no worse than training each: docs/choosing.md
has what was measured. The recipe that is chosen trains its small head from the start.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from architectures.shapes.section import ArchitectureConfig
from architectures.targets.target import is_gguf
from distill.choose.candidates import Candidate, depth_name
from distill.recipe.recipe import Recipe
from distill.run.progressive import share_answers
from distill.run.run_folder import owned_run
from distill.run.stage_folders import begin_stage
from distill.stages.running import cache_if_asked, distill_stage, eval_prompts, generate_stage, prune_stage, timed

if TYPE_CHECKING:
    from eval.records.scorecard import Scorecard


def train_candidates(recipe: Recipe, candidates: Sequence[Candidate]) -> dict[str, Path]:
    """Train what the candidates need, and cut small heads where sizes are compared; what is finished is left as it is.

    Args:
        recipe: Of the run they belong to.
        candidates: Each in a folder of its own.

    Returns:
        The folder of each one's weights, by name.
    """
    timed("generate", lambda: generate_stage(recipe))
    cache_if_asked(recipe)
    trials = trials_of(candidates)
    for place, trial in enumerate(trials.values(), start=1):
        print(f"== {name_of(trial)}, {place} of {len(trials)}", flush=True)
        run = beside(recipe, trial)
        with owned_run(run):
            share_answers(recipe, run)
            timed("prune", lambda run=run: prune_stage(run))
            timed("distill", lambda run=run: distill_stage(Path(run.run_dir) / "recipe.yaml", []))
    return {one.name: weights_of(recipe, one, trials[one.shape.layers]) for one in candidates}


def trials_of(candidates: Sequence[Candidate]) -> dict[int, Recipe]:
    """What is trained, by layers: the candidates, or with the whole head where they have heads of several sizes."""
    one_size = len({one.shape.head_rows for one in candidates}) == 1
    return {one.shape.layers: one.recipe if one_size else whole_recipe(one) for one in candidates}


def whole_recipe(one: Candidate) -> Recipe:
    """The recipe of the candidate of the same depth that can say everything."""
    name = depth_name(one.shape.layers)
    return one.recipe.model_copy(
        update={
            "run_name": one.recipe.run_name.removesuffix(one.name) + name,
            "run_dir": str(Path(one.recipe.run_dir).with_name(name)),
            "architecture": one.recipe.architecture.model_copy(update={"vocabulary": None}),
        }
    )


def name_of(trial: Recipe) -> str:
    return Path(trial.run_dir).name


def weights_of(recipe: Recipe, one: Candidate, trial: Recipe) -> Path:
    """Where a candidate's weights are: the draft that was trained, or cut out of it now."""
    draft = Path(trial.run_dir) / "draft"
    if trial == one.recipe:
        return draft
    print(f"== {one.name}, cut out of {name_of(trial)}", flush=True)
    cut = beside(recipe, cut_recipe(one, draft))
    with owned_run(cut):
        share_answers(recipe, cut)
        timed("prune", lambda: prune_stage(cut))
    return Path(cut.run_dir) / "init"


def cut_recipe(one: Candidate, draft: Path) -> Recipe:
    """The recipe of a candidate that keeps everything of a trained draft but rows of its head."""
    vocabulary = one.recipe.architecture.vocabulary
    wanted = ArchitectureConfig(layers=one.shape.layers, method="first_last", source=str(draft), vocabulary=vocabulary)
    return one.recipe.model_copy(update={"architecture": wanted})


def beside(recipe: Recipe, trial: Recipe) -> Recipe:
    """A trial's recipe, with the imported target and the scores of the run it belongs to."""
    run, target = Path(recipe.run_dir), recipe.target
    if is_gguf(target.path):
        target = target.model_copy(update={"path": str(run / "target")})
    scores = recipe.architecture.scores or str(run / "scores")
    architecture = trial.architecture.model_copy(update={"scores": scores})
    return trial.model_copy(update={"target": target, "architecture": architecture})


def score_candidates(recipe: Recipe, drafts: Mapping[str, Path]) -> "Scorecard":
    """One scorecard of all drafts, in <run>/choose/eval: the same prompts, step times taken in turns."""
    from eval.scorecard import score_drafts

    folder = Path(recipe.run_dir) / "choose" / "eval"
    config = recipe.eval.model_copy(update={"latency_batch_sizes": (), "policy_prompts": 0})  # ranked alone, at batch 1
    return score_drafts(begin_stage(recipe), drafts, eval_prompts(recipe), config, folder, seed=recipe.seed)
