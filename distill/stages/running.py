"""The stages of a run: what each reads, what it writes, and when it may be skipped.

A stage is finished when its folder holds a manifest.json; it is current when that manifest records the inputs the
recipe asks for today. `run_all` goes through them in order, so an interrupted run continues where it stopped.
Heavy imports happen inside the stages: `widedraft check` and `--help` never pay for them.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from architectures.checkpoints.generation_settings import SETTINGS_NAME, write_assistant_settings
from architectures.checkpoints.manifest import changed_inputs, read_manifest, write_manifest
from architectures.errors import UserError
from architectures.targets.target import resolve_checkpoint
from distill.caching.stage import states_are_due
from distill.hub.files.asked import refuse_unpublishable
from distill.recipe.recipe import Recipe, load_recipe
from distill.recipe.teacher import Cache, keeps_states
from distill.run.lineage import masks_are_due, refuse_orphaned_training, require_training_inputs
from distill.run.progressive import earlier_stages, share_answers
from distill.run.run_folder import held, owned_run
from distill.run.stage_folders import begin_stage, is_current, refuse_changed, require_finished
from distill.run.stage_inputs import (
    counts_answers,
    draft_inputs,
    eval_inputs,
    generate_inputs,
    mask_inputs,
    prune_inputs,
    recipe_hash,
    source_record,
    target_record,
)

if TYPE_CHECKING:
    from eval.prompts.forms import Prompt
    from eval.records.scorecard import Scorecard


def run_all(recipe_path: Path, overrides: Sequence[str]) -> None:
    """Prune, generate, distil, export, score, report, publish; skip what is current; end with the scorecard's headline.

    Learned masks are trained first, where the recipe wants them; answers are written before the cut that counts them.
    """
    recipe = load_recipe(recipe_path, overrides)
    refuse_unpublishable(recipe)
    if recipe.architecture.stages is not None:
        run_earlier_stages(recipe)
    if recipe.architecture.method == "learned_masks":
        timed("masks", lambda: mask_stage(recipe_path, overrides))
    first_two = {"prune": prune_stage, "generate": generate_stage}
    for name in reversed(first_two) if counts_answers(recipe) else first_two:
        timed(name, partial(first_two[name], recipe))
    cache_if_asked(recipe)
    timed("distill", lambda: distill_stage(recipe_path, overrides))
    timed("eval", lambda: eval_stage(recipe))
    timed("report", lambda: report_stage(recipe))
    if recipe.distill.push_to_hub is not None:
        timed("push", lambda: push_stage(recipe))
    print_outcome(recipe)


def run_earlier_stages(recipe: Recipe) -> None:
    """Cut and distil every stage before the last, each out of the one before it.

    The teacher is cached behind the first cut, which says what ids the entries of a cache are of.
    """
    timed("generate", lambda: generate_stage(recipe))
    for stage in earlier_stages(recipe):
        print(f"== stage of {stage.architecture.layers} layers, in {stage.run_dir}", flush=True)
        with owned_run(stage):
            share_answers(recipe, stage)
            timed("prune", partial(prune_stage, stage))
            cache_if_asked(recipe)
            timed("distill", partial(distill_stage, Path(stage.run_dir) / "recipe.yaml", []))


def timed(name: str, stage: Callable[[], None]) -> None:
    """Run one stage and say how long it took."""
    print(f"== {name}", flush=True)
    start_s = time.monotonic()
    stage()
    print(f"   {name} took {time.monotonic() - start_s:.0f} s", flush=True)


def print_outcome(recipe: Recipe) -> None:
    """Say where the draft and the scorecard are, and what the scorecard says first."""
    from eval.scorecard import headline

    run = Path(recipe.run_dir)
    print(
        f"\ndraft:     {run / 'draft'}\nscorecard: {run / 'eval' / 'scorecard.md'}\n"
        f"report:    {run / 'eval' / 'report.html'}\n\n{headline(read_scorecard(run))}"
    )


def mask_stage(recipe_path: Path, overrides: Sequence[str]) -> None:
    """Train learned masks into <run>/masks, on every GPU of this machine or on its processor.

    Raises:
        UserError: If the recipe has another method, or masks are there that were made from something else.
    """
    recipe = load_recipe(recipe_path, overrides)
    if recipe.architecture.method != "learned_masks":
        raise UserError(
            f"{recipe_path}: architecture.method is {recipe.architecture.method}; only learned_masks has masks to "
            "train. Run `widedraft prune` next."
        )
    masks, target = Path(recipe.run_dir) / "masks", begin_stage(recipe)
    if masks_are_due(recipe):
        run_training(recipe_path, overrides)
    else:
        refuse_changed(masks, mask_inputs(recipe, target))
        print(f"   {masks}: up to date")


def prune_stage(recipe: Recipe) -> None:
    """Cut <run>/init out of the target."""
    from architectures.pruning.prune import prune_checkpoint
    from distill.stages.pruning import weights_and_plan

    init = Path(recipe.run_dir) / "init"
    target = begin_stage(recipe)
    inputs = prune_inputs(recipe, target)
    if is_current(init, inputs):
        return
    refuse_orphaned_training(recipe, init)
    weights, plan, origin = weights_and_plan(recipe, target)

    def finish(folder: Path) -> None:
        write_manifest(
            folder,
            stage="prune",
            inputs=inputs,
            target=target_record(recipe),
            **source_record(recipe),
            recipe=recipe_hash(recipe),
        )

    prune_checkpoint(weights, plan, init, target=target, dtype=recipe.target.dtype, origin=origin, finish=finish)
    print(f"   {init}: {plan.summary()}")


def generate_stage(recipe: Recipe) -> None:
    """Let the target answer the prompts, or lay out the answers they come with, into <run>/data."""
    data = Path(recipe.run_dir) / "data"
    target = begin_stage(recipe)
    inputs = generate_inputs(recipe, target)
    if not states_are_due(recipe) and is_current(data, inputs):
        return
    counts = make_answers(recipe, target, data)
    write_manifest(
        data,
        stage="generate",
        inputs=inputs,
        answers=recipe.data.answers,
        counts=counts,
        target=target_record(recipe),
        recipe=recipe_hash(recipe),
    )
    print(f"   {data}: {counts}")


def make_answers(recipe: Recipe, target: Path, data: Path) -> dict[str, Any]:
    """Answers by the target, or those that come with the prompts; their counts."""
    from distill.data.generate import generate_answers
    from distill.data.given import collect_given
    from eval.decoding.state_keeper import StateKeeper

    answered = collect_given if recipe.data.answers == "given" else generate_answers
    if keeps_states(recipe.distill.teacher):
        answered = partial(generate_answers, answered_by=StateKeeper)
    to_train_on = recipe.distill.train_on == "answers"
    return answered(target, recipe.data, data, seed=recipe.seed, dtype=recipe.target.dtype, to_train_on=to_train_on)


def cache_if_asked(recipe: Recipe) -> None:
    """Cache the teacher, where the recipe reads it from the disk."""
    from distill.caching.stage import cache_stage

    if isinstance(recipe.distill.teacher, Cache):
        timed("cache", lambda: cache_stage(recipe))


def distill_stage(recipe_path: Path, overrides: Sequence[str], *options: str) -> None:
    """Train <run>/checkpoints and export <run>/draft, on every GPU of this machine or on its processor.

    Args:
        recipe_path: The recipe.
        overrides: Its key=value words.
        options: Of distill.train besides.
    """
    recipe = load_recipe(recipe_path, overrides)
    training = require_training_inputs(recipe)
    draft = read_manifest(Path(recipe.run_dir) / "draft")
    wanted = draft_inputs(recipe, training)
    if draft is not None and draft.get("finished") and not changed_inputs(draft, wanted):
        print(f"   {Path(recipe.run_dir) / 'draft'}: up to date{', so there is no step to profile' if options else ''}")
        return
    run_training(recipe_path, [*overrides, *options])


def export_stage(recipe: Recipe) -> None:
    """Make <run>/draft from the checkpoint the recipe wants, whether or not its training has finished."""
    from distill.checkpoints.files import chosen_checkpoint
    from distill.exporting.export import export_draft

    run = Path(recipe.run_dir)
    checkpoint = chosen_checkpoint(run / "checkpoints", recipe.export.checkpoint)
    if checkpoint is None:
        raise UserError(f"{run / 'checkpoints'}: no checkpoint to export. Run `widedraft distill` first.")
    target = resolve_checkpoint(recipe.target.path, revision=recipe.target.revision, cache=run / "target")
    export_draft(recipe, checkpoint, target=target, finished=False)
    print(f"   {run / 'draft'}: from {checkpoint}")


def eval_stage(recipe: Recipe) -> None:
    """Score <run>/draft and the undistilled <run>/init against the target, into <run>/eval."""
    from eval.scorecard import score_drafts

    run = Path(recipe.run_dir)
    target = begin_stage(recipe)
    for name, command in (("init", "prune"), ("draft", "distill")):
        require_finished(run / name, command)
    inputs = eval_inputs(recipe, target)
    if not is_current(run / "eval", inputs):
        if read_manifest(run / "eval") is not None:
            shutil.rmtree(run / "eval")  # a finished scorecard of other inputs; scoring costs minutes, not hours
        drafts = {"undistilled": run / "init", "draft": run / "draft"}
        score_drafts(target, drafts, eval_prompts(recipe), recipe.eval, run / "eval", seed=recipe.seed)
        write_manifest(run / "eval", stage="eval", inputs=inputs, recipe=recipe_hash(recipe))
        take_policies(run)
    use_best_lookahead(run)


def take_policies(run: Path) -> None:
    """Put the policies that were tuned for this scorecard beside the draft, where `--beside` looks for them."""
    from eval.policies.policy_file import FILE_NAME

    if (run / "eval" / FILE_NAME).is_file():
        shutil.copyfile(run / "eval" / FILE_NAME, run / "draft" / FILE_NAME)
        print(f"   {run / 'draft' / FILE_NAME}: when the text proposes beside the draft, for --beside")


def use_best_lookahead(run: Path) -> None:
    """Have transformers use the draft as its scorecard found best: what an export cannot know yet."""
    lookahead = read_scorecard(run).main_forecast.best_lookahead
    if write_assistant_settings(run / "draft", lookahead=lookahead):
        print(f"   {run / 'draft' / SETTINGS_NAME}: num_assistant_tokens {lookahead}, the best lookahead scored")


def read_scorecard(run: Path) -> "Scorecard":
    """What <run>/eval/scorecard.json holds."""
    from eval.report_inputs.cards import read_card

    return read_card(run / "eval" / "scorecard.json").record


def checkpoints_stage(recipe: Recipe) -> None:
    """Score every saved checkpoint on the answers of <run>/eval, and make its page anew."""
    from distill.exporting.saved_models import saved_models
    from eval.training_curve.page import best_sentence
    from eval.training_curve.score import score_checkpoints

    eval_stage(recipe)
    folder = Path(recipe.run_dir) / "eval"
    curves = score_checkpoints(
        begin_stage(recipe), saved_models(recipe), eval_prompts(recipe), recipe.eval, folder, seed=recipe.seed
    )
    report_stage(recipe)
    print(f"checkpoints: {folder / 'checkpoints.md'}\nreport:      {folder / 'report.html'}\n")
    print("\n".join(best_sentence(curve) for curve in curves.curves))


def report_stage(recipe: Recipe) -> None:
    """Make the page of <run>/eval, anew each time: it takes seconds."""
    from eval.report.page import write_report

    folder = Path(recipe.run_dir) / "eval"
    write_report([folder], folder / "report.html")


def push_stage(recipe: Recipe) -> None:
    """Publish the draft where distill.push_to_hub says; nothing is sent that is there already."""
    from distill.hub.push.command import pushed_words
    from distill.hub.push.publish import Wanted, push_run

    wanted = recipe.distill.push_to_hub
    assert wanted is not None
    pushed = push_run(
        Path(recipe.run_dir),
        Wanted(
            repo_id=wanted.repo_id,
            base_model=wanted.base_model,
            licence=wanted.license,
            public=wanted.public,
            revision=wanted.revision,
            pull_request=wanted.pull_request,
            gguf=wanted.gguf,
        ),
    )
    print(f"   {pushed_words(pushed)}")


def eval_prompts(recipe: Recipe) -> list["Prompt"]:
    """The prompts the recipe scores on: its tasks, or the held-out prompts of its data."""
    from eval.answers.traces import read_traces
    from eval.prompts.forms import Prompt
    from eval.prompts.loading import load_in_turn

    if recipe.eval.tasks:
        return load_in_turn(recipe.eval.tasks, most=recipe.eval.num_prompts + recipe.eval.policy_prompts)
    held_out = read_traces(Path(recipe.run_dir) / "data", "eval")
    return [Prompt(trace.source, tuple(trace.messages), category=trace.category, task=trace.task) for trace in held_out]


def run_training(recipe_path: Path, overrides: Sequence[str]) -> None:
    """Run `distill.train` in processes of its own; end this one with their exit code if they fail.

    They keep this process's locks, so that a run is owned as long as its training lives.
    """
    command, locks = training_command(recipe_path, overrides), tuple(held.values())
    completed = subprocess.run(command, env=training_environment(), pass_fds=locks, check=False)
    if completed.returncode != 0:
        sys.exit(completed.returncode)  # the training process has said why


def training_command(recipe_path: Path, overrides: Sequence[str]) -> list[str]:
    """The command that trains: one process per GPU through Composer's launcher, or one process."""
    import torch

    module = ["-m", "distill.train", str(recipe_path), *overrides]
    if torch.cuda.device_count() > 1:
        return [sys.executable, "-m", "composer", "-n", str(torch.cuda.device_count()), *module]
    return [sys.executable, *module]


def training_environment() -> dict[str, str]:
    """This environment, with the working folder off the import path: a user's own eval.py must not hide ours."""
    return {**os.environ, "PYTHONSAFEPATH": "1"}
