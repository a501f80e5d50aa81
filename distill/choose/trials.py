"""Short trainings of candidates, each a run of its own in <run>/choose, on the answers of the run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from architectures.target import is_gguf
from distill.choose.candidates import Candidate
from distill.progressive import share_answers
from distill.recipe import Recipe
from distill.run_folder import owned_run
from distill.stage_folders import begin_stage
from distill.stages import cache_if_asked, distill_stage, eval_prompts, generate_stage, prune_stage, timed


def train_candidates(recipe: Recipe, candidates: Sequence[Candidate]) -> None:
    """Prune and distil every candidate; what is finished already is left as it is.

    Args:
        recipe: Of the run they belong to.
        candidates: Each in a folder of its own.
    """
    timed("generate", lambda: generate_stage(recipe))
    cache_if_asked(recipe)
    for place, one in enumerate(candidates, start=1):
        print(f"== {one.name}, {place} of {len(candidates)}", flush=True)
        trial = beside(recipe, one)
        with owned_run(trial):
            share_answers(recipe, trial)
            timed("prune", lambda trial=trial: prune_stage(trial))
            timed("distill", lambda trial=trial: distill_stage(Path(trial.run_dir) / "recipe.yaml", []))


def beside(recipe: Recipe, one: Candidate) -> Recipe:
    """The recipe of a candidate, with the imported target and the scores of the run it belongs to."""
    run, target = Path(recipe.run_dir), recipe.target
    if is_gguf(target.path):
        target = target.model_copy(update={"path": str(run / "target")})
    scores = recipe.architecture.scores or str(run / "scores")
    architecture = one.recipe.architecture.model_copy(update={"scores": scores})
    return one.recipe.model_copy(update={"target": target, "architecture": architecture})


def score_candidates(recipe: Recipe, candidates: Sequence[Candidate]) -> dict[str, Any]:
    """One scorecard of all candidates, in <run>/choose/eval: the same prompts, step times taken in turns."""
    from eval.scorecard import score_drafts

    drafts = {one.name: Path(one.recipe.run_dir) / "draft" for one in candidates}
    folder = Path(recipe.run_dir) / "choose" / "eval"
    config = recipe.eval.model_copy(update={"latency_batches": ()})  # the ranking is of batch 1
    return score_drafts(begin_stage(recipe), drafts, eval_prompts(recipe), config, folder, seed=recipe.seed)
