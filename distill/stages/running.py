"""A run, stage by stage: what `widedraft run` does, and each stage alone.

Finished stages of the same inputs are left as they are, so an interrupted run continues where it stopped.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from architectures.errors import UserError
from architectures.settings.recipe_command import command_of
from architectures.sharing import ALONE, Share
from distill.cache_files import is_whole, verify_files
from distill.check import check_recipe
from distill.recipe.recipe import load_recipe
from distill.run.progressive import earlier_stages, share_answers
from distill.run.run import Run
from distill.run.run_folder import owned_run
from distill.run.stage_inputs import cache_inputs, counts_answers, eval_inputs, generate_inputs, prune_inputs
from distill.stages.processes import distill_stage, mask_stage
from distill.stages.table import (
    carry_out,
    cut_draft,
    eval_prompts,
    read_scorecard,
    require_cached_teacher,
    score_draft,
    use_best_lookahead,
    write_answers,
    write_cache,
)
from eval.answers.shards import EVERY_FILE, Part


def run_all(recipe_path: Path, overrides: Sequence[str], share: Share = ALONE) -> None:
    """Check, prune, generate, distil, export, score, report, publish; skip what is current; print the headline.

    Learned masks are trained first, where the recipe wants them; answers are written before the cut that counts them.
    """
    run = Run.of(load_recipe(recipe_path, overrides), share)
    share.lead(lambda: check_first(run))
    if run.recipe.architecture.stages is not None:
        run_earlier_stages(run)
    if run.recipe.architecture.method == "learned_masks":
        timed("masks", lambda: mask_stage(recipe_path, overrides, share))
    first_two = {"prune": prune_stage, "generate": generate_stage}
    for name in reversed(first_two) if counts_answers(run.recipe) else first_two:
        timed(name, partial(first_two[name], run))
    cache_if_asked(run)
    timed("distill", lambda: distill_stage(recipe_path, overrides, share=share))
    if run.recipe.distill.online is not None and run.recipe.distill.online.baselines:
        timed("comparison", lambda: share.lead(lambda: comparison_stage(run)))
    timed("eval", lambda: eval_stage(run))
    timed("report", lambda: report_stage(run))
    if run.recipe.distill.push_to_hub is not None:
        timed("push", lambda: push_stage(run))
    share.lead(lambda: print_outcome(run))


def owned_by_the_first(run: Run) -> AbstractContextManager[None]:
    """Own a run for as long as the block lasts; of several processes the first owns it for all."""
    return owned_run(run) if run.share.leads else nullcontext()


def check_first(run: Run) -> None:
    """Refuse everything that `widedraft check` finds before the first stage computes anything.

    Raises:
        UserError: As `check_recipe`.
    """
    start_s = time.monotonic()
    check_recipe(run.recipe)
    print(f"== check: nothing is wrong with the recipe ({time.monotonic() - start_s:.1f} s)", flush=True)


def run_earlier_stages(run: Run) -> None:
    """Cut and distil every stage before the last, each out of the one before it.

    The teacher is cached behind the first cut, which decides what ids the entries of a cache are of.
    """
    timed("generate", lambda: generate_stage(run))
    for stage in earlier_stages(run):
        print(f"== stage of {stage.recipe.architecture.layers} layers, in {stage.folder}", flush=True)
        with owned_by_the_first(stage):
            run.share.lead(partial(share_answers, run, stage))
            timed("prune", partial(prune_stage, stage))
            cache_if_asked(run)
            timed("distill", partial(distill_stage, stage.recipe_file, [], share=run.share))


def timed(name: str, stage: Callable[[], None]) -> None:
    """Run one stage and say how long it took."""
    print(f"== {name}", flush=True)
    start_s = time.monotonic()
    stage()
    print(f"   {name} took {time.monotonic() - start_s:.0f} s", flush=True)


def print_outcome(run: Run) -> None:
    """Say where the draft and the scorecard are, and what the scorecard says first."""
    from eval.scorecard_tables import summary

    scored = run.eval.path
    print(
        f"\ndraft:     {run.draft.path}\nscorecard: {scored / 'scorecard.md'}\n"
        f"report:    {scored / 'report.html'}\n\n{summary(read_scorecard(run))}"
    )


def prune_stage(run: Run) -> None:
    """Cut <run>/init out of the target."""
    carry_out(run, run.init, prune_inputs, cut_draft)


def generate_stage(run: Run, part: Part = EVERY_FILE) -> None:
    """Let the target answer the prompts, or lay out the answers they come with, into <run>/data.

    Raises:
        UserError: If parts are asked for of prompts that the target writes itself.
    """
    if part != EVERY_FILE and run.recipe.data.self_written_prompts:
        raise UserError(
            "--shard: not beside data.self_written_prompts: which prompts there are is known once one job has written "
            "them all. Leave --shard out."
        )
    carry_out(run, run.data, generate_inputs, partial(write_answers, part=part))


def cache_stage(run: Run) -> None:
    """Write the teacher's outputs for the answers in <run>/data into <run>/teacher_cache.

    Raises:
        UserError: If the recipe's teacher is live, the answers are not the recipe's, a cache is there that was made
            from something else, or entries of a small vocabulary are asked for before a draft was cut.
    """
    require_cached_teacher(run.recipe.distill.teacher)
    carry_out(
        run,
        run.teacher_cache,
        cache_inputs,
        write_cache,
        require=lambda: run.data.require(generate_inputs(run)),
        is_incomplete=lambda: not is_whole(run.teacher_cache.path),
        changed="refuse",
    )


def verify_cache_stage(run: Run) -> None:
    """Compare every file of <run>/teacher_cache with its checksum.

    Raises:
        UserError: If the recipe's teacher is live, the cache is not finished, or a file is not as it was written.
    """
    require_cached_teacher(run.recipe.distill.teacher)
    folder = run.teacher_cache.path
    print(f"   {folder}: {verify_files(folder)} files are as they were written")


def cache_if_asked(run: Run) -> None:
    """Cache the teacher, where the recipe reads it from the disk."""
    if run.recipe.distill.teacher.is_cache:
        timed("cache", lambda: cache_stage(run))


def comparison_stage(run: Run) -> None:
    """Compare drafts that do not learn with the online one, on its stream of requests."""
    from distill.online.learning import compare_on_stream

    print(f"   {compare_on_stream(run)}")


def eval_stage(run: Run) -> None:
    """Score <run>/draft and the undistilled <run>/init against the target, into <run>/eval."""
    drafts = (run.init, run.draft)
    carry_out(
        run,
        run.eval,
        eval_inputs,
        score_draft,
        require=lambda: [draft.require_finished() for draft in drafts],
        changed="replace",  # scoring costs minutes, not hours
    )
    run.share.lead(lambda: use_best_lookahead(run))


def export_stage(run: Run) -> None:
    """Make <run>/draft from the checkpoint the recipe wants, whether or not its training has finished."""
    from distill.checkpoints.files import chosen_checkpoint
    from distill.export import export_draft

    saved = run.checkpoints.path
    checkpoint = chosen_checkpoint(saved, run.recipe.export.checkpoint)
    if checkpoint is None:
        raise UserError(f"{saved}: no checkpoint to export. Run {command_of('distill')} first.")
    export_draft(run, checkpoint, finished=False)
    print(f"   {run.draft.path}: from {checkpoint}")


def checkpoints_stage(run: Run) -> None:
    """Score every saved checkpoint on the answers of <run>/eval, and make its page anew."""
    from architectures.tables import terminal
    from distill.export import saved_models
    from eval.checkpoint_curve import curves_page, score_checkpoints
    from eval.engines.generate import responses_by

    eval_stage(run)
    folder, recipe = run.eval.path, run.recipe
    with responses_by(recipe.generate) as kind:
        how = {"seed": recipe.seed, "answered_by": kind, "holding": recipe.target.holding, "share": run.share}
        curves = score_checkpoints(run.target, saved_models(run), eval_prompts(run), recipe.eval, folder, **how)
    report_stage(run)
    print(f"report: {folder / 'report.html'}\n\n{terminal(curves_page(curves))}")


def report_stage(run: Run) -> None:
    """Make the page of <run>/eval, anew each time: it takes seconds."""
    from eval.report import write_report

    run.share.lead(lambda: write_report([run.eval.path], run.eval.path / "report.html"))


def push_stage(run: Run) -> None:
    """Publish the draft where distill.push_to_hub says; nothing is sent that is there already."""
    run.share.lead(lambda: publish(run))


def publish(run: Run) -> None:
    """The same, by one process."""
    from distill.hub.publish import push_run
    from distill.hub.push import PushSettings

    wanted = run.recipe.distill.push_to_hub
    assert wanted is not None
    print(f"   {push_run(PushSettings(run=run.folder, repo_id=wanted))}")
