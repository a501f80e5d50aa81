"""A run, stage by stage: what `widedraft run` does, and each stage alone.

Finished stages of the same inputs are left as they are, so an interrupted run continues where it stopped.

A stage is finished when its folder holds a manifest; it is current when that manifest records the inputs that the
recipe asks for today. Imports torch only where it computes.

Where a launcher has started several processes for this command, each of them starts one that trains, and these meet.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from architectures.errors import UserError
from architectures.manifest import PACKAGES, Counts, changed_inputs, flat, package_version
from architectures.settings import command_of
from architectures.sharing import ALONE, Share
from architectures.target_files import SETTINGS_NAME, write_assistant_settings
from distill.cache_files import is_whole, verify_files
from distill.check import check_recipe
from distill.distributed import is_launched, require_same
from distill.process import signals_kept
from distill.recipe.recipe import load_recipe
from distill.recipe.sections import TeacherConfig, teacher_dtype
from distill.run import Artifact, Run, earlier_stages, held, owned_run, share_answers
from distill.stage_inputs import (
    cache_inputs,
    counts_answers,
    draft_inputs,
    entry_ids,
    eval_inputs,
    generate_inputs,
    mask_inputs,
    prune_inputs,
    refuse_orphaned_training,
    require_training_inputs,
)
from eval.responses import EVERY_FILE, Part, missing_shards, read_claims, read_traces

if TYPE_CHECKING:
    from eval.prompts import Prompt
    from eval.scorecard_schema import Scorecard

NAMES = ("eval", "train")  # of the shards of a run's answers


def carry_out(
    run: Run,
    artifact: Artifact,
    inputs_of: Callable[[Run], Mapping[str, Any]],
    make: Callable[[Run, Callable[..., None]], str | None],
    *,
    require: Callable[[], object] = lambda: None,
    is_incomplete: Callable[[], bool] = lambda: False,
    changed: Literal["remake", "replace", "refuse"] = "remake",
) -> None:
    """Make what a stage makes unless it is there.

    Args:
        run: The run.
        artifact: What the stage makes.
        inputs_of: Fingerprints of what it makes that from.
        make: Makes it and finishes it; what there is to say of it, or None where its processes have said so.
        require: Raises UserError if the stage may not begin.
        is_incomplete: Whether something is missing in what is finished, and is to be made without the rest.
        changed: What becomes of a finished artifact of other inputs: "remake" over it, "replace" the folder, or
            "refuse" where that would throw away hours.

    Raises:
        UserError: If the stage may not begin, or what is there is of other inputs and is not replaced.
    """
    share = run.share

    def begin() -> None:
        run.begin()
        require()

    share.lead(begin)
    inputs = inputs_of(run)
    versions = {name: str(package_version(name)) for name in PACKAGES}
    require_same(share, "inputs", {**{key: json.dumps(value) for key, value in flat(inputs).items()}, **versions})

    def is_up_to_date() -> bool:
        if not artifact.is_finished:
            return False
        if changed == "refuse":
            artifact.refuse_changed(inputs)
        if is_incomplete():
            return False
        is_current = artifact.is_current(inputs)
        if not is_current and changed == "replace":
            shutil.rmtree(artifact.path)
        return is_current

    if not share.lead(is_up_to_date):
        # Of several processes the first writes the manifest.
        outcome = make(run, partial(run.record, artifact, inputs) if share.leads else lambda *_, **__: None)
        if outcome is not None:
            print(f"   {artifact.path}: {outcome}", flush=True)
        share.meet()  # the next stage may read what the first process has just finished


def cut_draft(run: Run, finish: Callable[..., None]) -> str:
    """Cut <run>/init out of the target."""
    from architectures.pruning.prune import prune_checkpoint
    from distill.prune_stage import weights_and_plan

    refuse_orphaned_training(run)
    weights, plan, origin = weights_and_plan(run)
    if run.share.leads:
        prune_checkpoint(
            weights,
            plan,
            run.init.path,
            target=run.target,
            dtype=run.recipe.target.dtype,
            origin=origin,
            finish=finish,
        )
    return plan.summary()


def write_answers(run: Run, finish: Callable[..., None], *, part: Part = EVERY_FILE) -> str:
    """Let the target answer the prompts, or lay out the answers they come with, into <run>/data.

    Args:
        run: Whose recipe says so.
        finish: Called by whoever finds all parts there.
        part: What of the files is written.
    """
    counts = make_answers(run, part)
    if counts is None:
        left = len(missing_shards(run.data.path, [name for name in NAMES if name in read_claims(run.data.path)]))
        return f"part {part.number} of {part.of} is written, {left} files of others are not: the last job joins them"
    finish(answers=run.recipe.data.answers, counts=counts)
    return ", ".join(f"{key} {count:,}" for key, count in flat(counts).items() if count is not None)


def make_answers(run: Run, part: Part = EVERY_FILE) -> Counts | None:
    """Answers by the target, or those that come with the prompts; their counts once all parts are there."""
    from distill.data.given import collect_given
    from distill.data.training_data import generate_answers
    from eval.engines.external_generate import responses_by

    recipe = run.recipe
    answered = collect_given if recipe.data.answers == "given" else generate_answers
    with responses_by(recipe.generate) as kind:
        return answered(
            run.target,
            recipe.data,
            run.data.path,
            seed=recipe.seed,
            dtype=recipe.target.dtype,
            to_train_on=recipe.distill.learns_answers,
            answered_by=kind,
            holding=recipe.target.holding,
            part=part,
            share=run.share,
        )


def score_draft(run: Run, finish: Callable[..., None]) -> None:
    """Score <run>/draft and the undistilled <run>/init against the target, into <run>/eval."""
    from eval.engines.external_generate import responses_by
    from eval.scorecard import score_drafts
    from eval.scorecard_schema import UNDISTILLED

    drafts = {UNDISTILLED: run.init.path, "draft": run.draft.path}
    with responses_by(run.recipe.generate) as kind:
        score_drafts(
            run.target,
            drafts,
            eval_prompts(run),
            run.recipe.eval,
            run.eval.path,
            seed=run.recipe.seed,
            answered_by=kind,
            holding=run.recipe.target.holding,
            share=run.share,
        )
    finish()


def use_best_lookahead(run: Run) -> None:
    """Have transformers use the draft as its scorecard found best: what an export cannot know yet."""
    best = read_scorecard(run).main_forecast.best_lookahead
    if write_assistant_settings(run.draft.path, lookahead=best):
        print(f"   {run.draft.path / SETTINGS_NAME}: num_assistant_tokens {best}, the best that was scored")


def read_scorecard(run: Run) -> "Scorecard":
    """What <run>/eval/scorecard.json holds."""
    from eval.scorecard_schema import CARD_NAME, read_scorecard

    return read_scorecard(run.eval.path / CARD_NAME)


def eval_prompts(run: Run) -> list["Prompt"]:
    """The prompts the recipe scores on: its tasks, or the held-out prompts of its data."""
    from eval.prompts import Prompt, load_in_turn

    scoring = run.recipe.eval
    if scoring.tasks:
        return load_in_turn(scoring.tasks, most=scoring.num_prompts)
    held_out = read_traces(run.data.path, "eval")
    return [Prompt(trace.source, tuple(trace.messages), category=trace.category, task=trace.task) for trace in held_out]


def write_cache(run: Run, finish: Callable[..., None]) -> str:
    """Let the teacher read the answers; continues an interrupted capture."""
    with signals_kept():
        from distill.teacher_cache import CaptureSettings, capture_teacher
        from distill.train import read_split

    recipe, teacher = run.recipe, require_cached_teacher(run.recipe.distill.teacher)
    splits = ("train", "eval") if recipe.distill.learns_answers else ("eval",)
    joined = recipe.data.answers == "given"
    read = {name: read_split(run, name, joined=joined and name == "train") for name in splits}
    dtype = teacher_dtype(recipe.target.dtype, recipe.distill.precision)
    settings = CaptureSettings(
        teacher,
        dtype=dtype,
        seed=recipe.seed,
        batch_size=recipe.data.batch_size,
        ids=entry_ids(run),
        holding=recipe.target.holding,
    )
    capture_teacher(
        run.target,
        {name: answers.examples for name, answers in read.items()},
        run.teacher_cache.path,
        settings,
        inputs=cache_inputs(run),
        share=run.share,
        finish=partial(finish, dtype=dtype, max_seq_len=recipe.data.max_seq_len),
    )
    return f"{teacher.contents} of the teacher"


def require_cached_teacher(teacher: TeacherConfig) -> TeacherConfig:
    """A recipe's teacher, which is read from a cache, else UserError."""
    if not teacher.is_cache:
        raise UserError(f"distill.teacher.source is {teacher.source}: there is nothing to cache. Set it to cache.")
    return teacher


NOT_LAUNCHED = {  # the environment of a single process
    **dict.fromkeys(("RANK", "LOCAL_RANK", "NODE_RANK"), "0"),
    **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "1"),
}


def mask_stage(recipe_path: Path, overrides: Sequence[str], share: Share = ALONE) -> None:
    """Train learned masks into <run>/masks; UserError if masks are there that were made from something else."""
    run = Run.of(load_recipe(recipe_path, overrides), share)

    carry_out(run, run.masks, mask_inputs, lambda *_: run_training(recipe_path, overrides, share), changed="refuse")


def distill_stage(recipe_path: Path, overrides: Sequence[str], *options: str, share: Share = ALONE) -> None:
    """Train <run>/checkpoints and export <run>/draft.

    Args:
        recipe_path: The recipe.
        overrides: Its key=value words.
        options: Of distill.train besides.
        share: This process's part of the training.
    """
    run = Run.of(load_recipe(recipe_path, overrides), share)
    if share.lead(lambda: is_trained(run)):
        print(f"   {run.draft.path}: up to date{', so there is no step to profile' if options else ''}")
        return
    run_training(recipe_path, [*overrides, *options], share)


def is_trained(run: Run) -> bool:
    """Whether there is the finished draft of what the recipe asks for.

    Raises:
        UserError: As require_training_inputs.
    """
    require_training_inputs(run)
    draft = run.draft.manifest
    return bool(draft is not None and draft.get("finished") and not changed_inputs(draft, draft_inputs(run)))


def run_training(recipe_path: Path, overrides: Sequence[str], share: Share = ALONE) -> None:
    """Run `distill.train` in processes of its own; end this one as they end if they fail.

    They keep this process's locks, so that a run is owned as long as its training lives.

    Args:
        recipe_path: The recipe.
        overrides: Its key=value words.
        share: This process's part: one of as many as a launcher started, or all of it, on this process's device where
            a launcher started others beside it.
    """
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}  # a user's own eval.py in the working folder must not hide ours
    command = training_command(recipe_path, overrides)
    if share.count > 1:
        environment |= share.lead(meeting_place)
    elif is_launched():
        environment |= {**NOT_LAUNCHED, **own_device()}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()  # what this process holds of its GPU for nothing
    with subprocess.Popen(command, env=environment, pass_fds=tuple(held.values())) as training:
        before = signal.signal(signal.SIGTERM, lambda *_: training.terminate())  # it says what that means
        try:
            code = training.wait()
        except BaseException:
            training.kill()
            raise
        finally:
            signal.signal(signal.SIGTERM, before)
    if code < 0:  # ended by a signal, as this process ends now
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    if code != 0:
        sys.exit(code)
    share.meet()


def meeting_place() -> dict[str, str]:
    """A place where training processes meet: the launcher's own is taken by those that start them."""
    with closing(socket.socket()) as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    return {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "False"}  # torchrun's would be looked for there


def own_device() -> dict[str, str]:
    """The environment in which this process's GPU is the only one; nothing on a processor."""
    import torch

    if not torch.cuda.is_available():
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]
    return {"CUDA_VISIBLE_DEVICES": names[torch.cuda.current_device()]}


def training_command(recipe_path: Path, overrides: Sequence[str]) -> list[str]:
    """One process for each GPU through Composer's launcher, unless a launcher has started this process; else one."""
    import torch

    several = torch.cuda.device_count() > 1 and not is_launched()
    launcher = ["composer", "-n", str(torch.cuda.device_count()), "-m"] if several else []
    return [sys.executable, "-m", *launcher, "distill.train", str(recipe_path), *overrides]


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
    from distill.checkpoints.checkpoint_files import chosen_checkpoint
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
    from eval.engines.external_generate import responses_by

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
