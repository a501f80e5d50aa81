"""Trainings of candidates, each a run of its own in <run>/choose/<length>, on the answers of the run.

A training that is longer than one before goes on from its checkpoint: <run>/choose/200ba/2-layers links to that of
<run>/choose/100ba/2-layers, which stays as it is. The learning rate is then where the recipe's schedule has it for the
longer training: it rises again, and falls to its end at the new one. Every length so ends as the recipe's own training
would; what that costs beside a training of the same length in one piece is in docs/choosing.md.

Where several sizes of the vocabulary are asked for, each depth and width is trained once, with its whole head, and its
small heads are cut out of what was trained. That takes one training for each of them and not one for each candidate,
and candidates of one body differ by their heads alone. In equal steps it is no worse than training each:
docs/choosing.md has what was measured. The recipe that is chosen trains its small head from the start.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from architectures.checkpoints.fingerprint import fingerprint_checkpoint
from architectures.shapes.section import ArchitectureConfig
from architectures.sharing import ALONE
from distill.checkpoints.files import find_checkpoints
from distill.choose.shapes.candidates import Candidate, trials_folder
from distill.recipe.recipe import Recipe
from distill.recipe.sections.teacher import is_sharded
from distill.run.artifact import ARTIFACTS, Artifact
from distill.run.content import sources_as_input
from distill.run.progressive import share_answers, with_imported_target
from distill.run.run import Run
from distill.stages.processes import distill_stage
from distill.stages.running import cache_if_asked, generate_stage, owned_by_the_first, prune_stage, timed
from distill.stages.table import eval_prompts

if TYPE_CHECKING:
    from eval.config import EvalConfig
    from eval.scorecard_schema import Scorecard

NAMED = "*.pt"  # links to the best and the latest; checkpoints that are files too


def prepare_answers(run: Run) -> None:
    """What all trainings share: the answers, and a cached teacher."""
    timed("generate", lambda: generate_stage(run))
    cache_if_asked(run)


def train_candidates(
    run: Run, candidates: Sequence[Candidate], trials: Mapping[str, Recipe], length: str, earlier: str | None = None
) -> dict[str, Path]:
    """Train what the candidates need, and cut small heads where sizes are compared; what is finished is left as it is.

    Args:
        run: That they belong to, with its answers.
        candidates: Each in a folder of its own.
        trials: What is trained of them and of others, by body.
        length: Of the trainings.
        earlier: Length of trainings of the same candidates that these go on from; None to begin.

    Returns:
        The folder of each one's weights, by name.
    """
    needed = [trials[body] for body in dict.fromkeys(candidate.body for candidate in candidates)]
    for recipe in needed:
        cut_candidate(run, trial_run(run, recipe, length), None if earlier is None else trial_run(run, recipe, earlier))
    together = trained_together(run)
    mine = needed if together else run.share.mine(needed)
    for number, recipe in enumerate(mine, start=1):
        print(f"== {Path(recipe.run_dir).name} for {length}, {number} of {len(mine)}{run.share.words}", flush=True)
        trial = trial_run(run, recipe, length)
        train_candidate(trial if together else replace(trial, share=ALONE))
    run.share.meet()
    return {each.name: weights_of(run, each, trials[each.body], length) for each in candidates}


def trained_together(run: Run) -> bool:
    """Whether all processes train each candidate, as one device cannot hold it, and not each process some of them."""
    config = run.recipe.distill
    return config.parallelism != "ddp" or is_sharded(config.teacher)


def cut_candidate(run: Run, trial: Run, earlier: Run | None) -> None:
    """Make what the training of a candidate begins with, by all processes: scores of one serve the others.

    Args:
        run: That it belongs to, with its answers.
        trial: Of the candidate.
        earlier: A shorter training of it that this one goes on from; None to begin.
    """
    with owned_by_the_first(trial):
        run.share.lead(lambda: prepare(run, trial, earlier))
        timed(f"prune {trial.folder.name}", partial(prune_stage, trial))


def train_candidate(trial: Run) -> None:
    """Train one candidate, by the processes that share its trial."""
    with owned_by_the_first(trial):
        timed("distill", partial(distill_stage, trial.recipe_file, [], share=trial.share))


def prepare(run: Run, trial: Run, earlier: Run | None) -> None:
    """Lay the answers into a trial, and where it starts."""
    share_answers(run, trial)
    if earlier is not None:
        go_on_from(earlier, trial)


def trials_of(candidates: Sequence[Candidate]) -> dict[str, Recipe]:
    """What is trained, by body: the candidates, or their bodies where they have heads of several sizes."""
    same_size = len({candidate.shape.head_rows for candidate in candidates}) == 1
    return {candidate.body: candidate.recipe if same_size else whole_recipe(candidate) for candidate in candidates}


def whole_recipe(candidate: Candidate) -> Recipe:
    """The recipe of the same layers and widths with the whole head."""
    recipe, name = candidate.recipe, candidate.body
    return recipe.model_copy(
        update={
            "run_name": recipe.run_name.removesuffix(candidate.name) + name,
            "run_dir": str(Path(recipe.run_dir).with_name(name)),
            "architecture": recipe.architecture.model_copy(update={"vocabulary": None}),
        }
    )


def go_on_from(earlier: Run, later: Run) -> None:
    """Let a training that has not begun start where a shorter one ended."""
    if later.checkpoints.is_finished:
        return
    link(earlier.init.path, later.init.path)
    saved = earlier.checkpoints.path
    for path in sorted({*saved.glob(NAMED), *find_checkpoints(saved)}):
        linked = later.checkpoints.path / path.name
        if path.is_symlink():
            linked.parent.mkdir(parents=True, exist_ok=True)
            linked.unlink(missing_ok=True)
            linked.symlink_to(path.readlink())
        else:
            link(path, linked)


def link(path: Path, place: Path) -> None:
    """A relative link, unless there is something already."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.is_symlink() and not place.exists():
        place.symlink_to(os.path.relpath(path, place.parent))


def weights_of(run: Run, candidate: Candidate, trial: Recipe, length: str) -> Path:
    """The folder of a candidate's weights: the draft that was trained, or what is cut out of it now."""
    draft = trial_run(run, trial, length).draft.path
    if trial == candidate.recipe:
        return draft
    print(f"== {candidate.name}, cut out of {candidate.body}", flush=True)
    cut = trial_run(run, cut_recipe(candidate, draft), length)
    with owned_by_the_first(cut):
        run.share.lead(lambda: share_answers(run, cut))
        timed("prune", partial(prune_stage, cut))
    return cut.init.path


def cut_recipe(candidate: Candidate, draft: Path) -> Recipe:
    """The recipe of a candidate that keeps everything of a trained draft but rows of its head."""
    vocabulary = candidate.recipe.architecture.vocabulary
    wanted = ArchitectureConfig(
        layers=candidate.shape.layers, method="first_last", source=str(draft), vocabulary=vocabulary
    )
    return candidate.recipe.model_copy(update={"architecture": wanted})


def trial_run(run: Run, trial: Recipe, length: str) -> Run:
    """The run of a trial of some length, with the imported target and the scores of the run it belongs to."""
    place = Path(trial.run_dir)
    timed_trial = trial.model_copy(
        update={
            "run_dir": str(place.parent / length / place.name),
            "architecture": trial.architecture.model_copy(update={"scores": str(run.scores.path)}),
            "distill": trial.distill.model_copy(update={"max_duration": length}),
        }
    )
    return Run.of(with_imported_target(timed_trial, run), run.share)


def score_candidates(run: Run, drafts: Mapping[str, Path], length: str) -> "Scorecard":
    """One scorecard of all drafts of a length: the same prompts, step times taken in turns; read where it is there.

    The target's answers are those of every other length.
    """
    from eval.engines.generate import responses_by
    from eval.scorecard import score_drafts
    from eval.scorecard_schema import CARD_NAME, read_scorecard

    share, seed = run.share, run.recipe.seed
    share.lead(run.begin)
    scored = Artifact(trials_folder(run) / length / "eval", ARTIFACTS["eval"])
    inputs = scored_inputs(run, drafts)
    if not share.lead(lambda: scored.is_current(inputs)):
        share.lead(lambda: link_answers(run, scored.path))
        with responses_by(run.recipe.generate) as kind:
            how = {"seed": seed, "answered_by": kind, "holding": run.recipe.target.holding, "share": share}
            score_drafts(run.target, drafts, eval_prompts(run), config_of(run), scored.path, **how)
        share.lead(lambda: run.record(scored, inputs))
    return read_scorecard(scored.path / CARD_NAME)


def link_answers(run: Run, scored: Path) -> None:
    """Let a scorecard of candidates find the target's answers where all others do."""
    answers = trials_folder(run) / "answers"
    answers.mkdir(parents=True, exist_ok=True)
    link(answers, scored / answers.name)


def config_of(run: Run) -> "EvalConfig":
    """The recipe's scoring, without what a ranking does not look at."""
    return run.recipe.eval.model_copy(update={"latency_batch_sizes": (), "live_prompts": 1})


def scored_inputs(run: Run, drafts: Mapping[str, Path]) -> dict[str, Any]:
    """What a scorecard of candidates is made from."""
    scoring = config_of(run)
    return {
        "target": fingerprint_checkpoint(run.target),
        **{f"draft {name}": fingerprint_checkpoint(folder) for name, folder in drafts.items()},
        "eval": scoring.model_dump(mode="json", exclude={"answer_steps"}),
        "prompts": sources_as_input(scoring.tasks) if scoring.tasks else run.data.inputs,
        "seed": str(run.recipe.seed),
    }
