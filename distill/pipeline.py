"""Stages of a run, and `widedraft run`, which executes them in order.

A stage is finished when its directory holds a manifest, and current when that manifest records the inputs of today's
recipe. Current stages are skipped, so an interrupted run resumes. Imports torch only where it computes.

If a launcher has started several processes, each starts one training process, and these form the process group.

Scores belong to a target and a calibration text. They are computed once, saved in architecture.scores, and serve every
shape; a method that needs more scores later adds them to the same file.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from architectures.errors import UserError
from architectures.manifest import (
    PACKAGES,
    changed_inputs,
    fingerprint_checkpoint,
    fingerprint_value,
    flat,
    package_version,
)
from architectures.pruning.plan import (
    PLAN_NAME,
    SCORES_NAME,
    PruningPlan,
    Scores,
    load_plan,
    load_scores,
    needed_scores,
    plan_pruning,
    save_scores,
)
from architectures.settings import WHOLE, command_of
from architectures.target_files import SETTINGS_NAME, write_assistant_settings
from distill.cache_files import is_whole, verify_files
from distill.check import check_recipe
from distill.distributed import is_launched, require_same
from distill.draft_vocabulary import choose_output_ids, require_possible_ids, with_output_ids
from distill.process import EXIT_CODE, signals_kept
from distill.recipe.sections import TeacherConfig, teacher_dtype
from distill.recipe.validate import reject_orders
from distill.run import (
    Artifact,
    Run,
    cut_from,
    earlier_stages,
    held,
    length_of,
    owned_run,
    shape_of,
    share_responses,
)
from distill.stage_inputs import (
    cache_inputs,
    counts_responses,
    draft_inputs,
    entry_ids,
    eval_inputs,
    generate_inputs,
    mask_inputs,
    prune_inputs,
    reject_orphaned_training,
    require_training_inputs,
    scores_inputs,
    stream_baselines,
)
from eval.responses import EVERY_FILE, ShardPart, missing_shards, read_claims, read_traces

if TYPE_CHECKING:
    from torch import Tensor

    from eval.prompts import Prompt
    from eval.scorecard_schema import Scorecard, StreamRow


def weights_and_plan(run: Run) -> tuple[Path, PruningPlan, dict[str, Any]]:
    """Return the checkpoint to prune, the plan including the output ids, and their origin, for the manifest.

    Raises:
        UserError: If the source has another tokenizer than the target; also as the functions called.
    """
    target, wanted = run.target, run.recipe.architecture
    vocab = shape_of(target).vocab
    choice = None
    if wanted.vocabulary is not None:
        counted = {"responses": run.data.path, "text": run.recipe.text, "seed": run.recipe.seed}
        choice = choose_output_ids(wanted.vocabulary, target, vocab, **counted)
    if wanted.method == "learned_masks":
        masks = run.masks.path
        plan = load_plan(masks / PLAN_NAME, shape_of(target), target=target)
        return masks, *with_output_ids(plan, choice, masks, None)
    source = cut_from(run)
    if source != target:
        from eval.models import require_same_vocabulary

        hint = "The draft uses the target's: use an architecture.source with the same tokenizer."
        require_same_vocabulary(target, source, hint=hint)
    plan = recipe_plan(run, source).with_vocab(vocab)
    return source, *with_output_ids(plan, choice, source, wanted.plan)


def recipe_plan(run: Run, source: Path) -> PruningPlan:
    """Return the plan of a recipe: read from architecture.plan, or computed from shapes and scores.

    Raises:
        UserError: If the source cannot be pruned to the shape, or the plan is of another model.
    """
    shape, wanted = shape_of(source), run.recipe.architecture
    if wanted.plan is not None:
        return load_plan(Path(wanted.plan), shape, target=source)
    needed = needed_scores(shape, wanted)
    scores = scores_of(run, source, needed) if needed else Scores()
    return plan_pruning(shape, wanted, scores, seed=run.recipe.seed, target=fingerprint_checkpoint(source))


def scores_of(run: Run, source: Path, needed: set[str]) -> Scores:
    """Load the scores that a plan needs; compute and save missing ones."""
    inputs, file, share = scores_inputs(run, source), run.scores.path / SCORES_NAME, run.share

    def scores_there() -> Scores:
        manifest = run.scores.manifest
        is_there = manifest is not None and file.is_file() and not changed_inputs(manifest, inputs)
        return load_scores(file) if is_there else Scores()

    known = share.lead(scores_there)
    missing = needed - known.arrays.keys()
    if missing:
        # A source other than the target is loaded whole.
        reject_orders(run.recipe.target.placement if source == run.target else "whole", missing)
        computed = compute_scores(run, source, missing)
        if share.leads:
            save_scores(file, {**known.arrays, **computed})
            run.record(run.scores, inputs)
        known = share.lead(lambda: load_scores(file))
    print(f"   {file}: {'computed' if missing else 'up to date'} ({', '.join(sorted(needed))})", flush=True)
    return known


def compute_scores(run: Run, source: Path, missing: set[str]) -> dict[str, Any]:
    """Compute the missing scores, and further ones of the same pass over the text, on the first process only."""
    import numpy as np

    from architectures.pruning.importance import activation_scores, merge_order, removal_order
    from eval.large_targets import access_to, load_target

    ids_ST, share, wanted = calibration_ids(run, source), run.share, run.recipe.target
    orders = {"removal_order": removal_order, "merge_order": merge_order}
    searches = {name: orders[name] for name in orders if name in missing}
    if not searches and not share.leads:  # one pass over the text is the work of one process
        return {}
    holding = replace(wanted.holding, bits=None) if source == run.target else WHOLE
    model = load_target(source, dtype=wanted.dtype, holding=holding)
    ids_ST = ids_ST.to(model.device)
    scores = {name: np.array(search(model, ids_ST, share)) for name, search in searches.items()}
    if missing <= scores.keys() or not share.leads:
        return scores
    return {**scores, **activation_scores(model, ids_ST, access=access_to(model, source))}


def calibration_ids(run: Run, source: Path) -> "Tensor":
    """Return ids_ST of the calibration text, within the context of source; raise UserError if it is too short."""
    from architectures.pruning.importance import calibration_sequences
    from eval.models import load_tokenizer

    tokenizer, length = load_tokenizer(run.target), length_of(source)
    return calibration_sequences(
        calibration_texts(run, tokenizer),
        tokenizer,
        tokens=run.recipe.architecture.calibration.tokens,
        context_tokens=None if length is None else length.tokens,
    )


def calibration_texts(run: Run, tokenizer: Any) -> Iterator[str]:
    """Yield a text file's contents, or rendered prompts: of a file, of the data, or generated by the target."""
    from architectures.pruning.importance import read_calibration_text
    from distill.data.training_data import write_own_prompts_if_configured
    from eval.prompts import load_prompts, rendered
    from eval.tasks import PromptSource

    recipe, text = run.recipe, run.recipe.architecture.calibration.text
    if text is not None and not text.endswith(".jsonl"):
        yield from read_calibration_text(Path(text))
        return
    prompts = load_prompts(recipe.data.prompts if text is None else [PromptSource(path=text)])
    if not prompts:  # the generate stage reuses them
        prompts = write_own_prompts_if_configured(
            run.target,
            recipe.data,
            run.data.path,
            seed=recipe.seed,
            dtype=recipe.target.dtype,
            holding=recipe.target.holding,
            share=run.share,
        )
    for _, ids in rendered(tokenizer, prompts):
        yield tokenizer.decode(ids)


NAMES = ("eval", "train")  # splits of a run's responses


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
    """Run a stage unless its artifact is up to date.

    Args:
        inputs_of: Computes the fingerprints of the stage's inputs.
        make: Makes and finishes the artifact; returns a summary to print, or None.
        require: Raises UserError if the stage may not begin.
        is_incomplete: Returns True if only missing parts of a finished artifact are to be made.
        changed: What to do with a finished artifact of other inputs; "refuse" if hours of work would be lost.

    Raises:
        UserError: If the stage may not begin, or a changed artifact is not to be replaced.
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
            artifact.reject_changed(inputs)
        if is_incomplete():
            return False
        is_current = artifact.is_current(inputs)
        if not is_current and changed == "replace":
            shutil.rmtree(artifact.path)
        return is_current

    if not share.lead(is_up_to_date):
        # Only the first process writes the manifest.
        outcome = make(run, partial(run.record, artifact, inputs) if share.leads else lambda *_, **__: None)
        if outcome is not None:
            print(f"   {artifact.path}: {outcome}", flush=True)
        share.meet()  # the next stage may read an artifact that the first process has just finished


def cut_draft(run: Run, finish: Callable[..., None]) -> str:
    from architectures.pruning.prune import prune_checkpoint

    reject_orphaned_training(run)
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


def write_responses(run: Run, finish: Callable[..., None], *, part: ShardPart = EVERY_FILE) -> str:
    """Write the responses into <run>/data, generated by the target or given with the prompts."""
    from distill.data.given import collect_given
    from distill.data.training_data import generate_responses
    from eval.engines.external_generate import responses_by
    from eval.models import load_tokenizer, require_rows

    recipe = run.recipe
    require_rows(run.target, last_id=max(load_tokenizer(run.target).get_vocab().values()))
    answered = collect_given if recipe.data.responses == "given" else generate_responses
    with responses_by(recipe.generate) as kind:
        counts = answered(
            run.target,
            recipe.data,
            run.data.path,
            seed=recipe.seed,
            dtype=recipe.target.dtype,
            to_train_on=recipe.distill.trains_on_responses,
            generated_by=kind,
            holding=recipe.target.holding,
            part=part,
            share=run.share,
        )
    if counts is None:
        left = len(missing_shards(run.data.path, [name for name in NAMES if name in read_claims(run.data.path)]))
        return f"part {part.number} of {part.of} is complete, {left} files of others are not; the last job merges them"
    finish(responses=recipe.data.responses, counts=counts)
    return ", ".join(f"{key} {count:,}" for key, count in flat(counts).items() if isinstance(count, int))


def score_draft(run: Run, finish: Callable[..., None]) -> None:
    from eval.engines.external_generate import responses_by
    from eval.scorecard import score_drafts
    from eval.scorecard_schema import UNDISTILLED

    drafts = {UNDISTILLED: run.init.path, "draft": run.draft.path}
    on_stream = run.share.lead(lambda: compared_on_stream(run))
    with responses_by(run.recipe.generate) as kind:
        score_drafts(
            run.target,
            drafts,
            eval_prompts(run),
            run.recipe.eval,
            run.eval.path,
            seed=run.recipe.seed,
            generated_by=kind,
            holding=run.recipe.target.holding,
            share=run.share,
            on_stream=on_stream,
        )
    finish()


def compared_on_stream(run: Run) -> tuple["StreamRow", ...]:
    """Replay an online draft's requests with its static baselines; empty without them."""
    if not stream_baselines(run):
        return ()
    from distill.online.learning import compare_on_stream

    return compare_on_stream(run)


def use_best_k(run: Run) -> None:
    """Write the best num_speculative_tokens of the scorecard into the draft's settings for transformers."""
    best = read_scorecard(run).main_forecast.best_k
    if write_assistant_settings(run.draft.path, num_speculative_tokens=best):
        print(f"   {run.draft.path / SETTINGS_NAME}: num_assistant_tokens {best}, the best scored")


def read_scorecard(run: Run) -> "Scorecard":
    from eval.scorecard_schema import CARD_NAME, read_scorecard

    return read_scorecard(run.eval.path / CARD_NAME)


def eval_prompts(run: Run) -> list["Prompt"]:
    """Return the evaluation prompts: those of eval.tasks, or the held-out prompts of the data."""
    from eval.models import load_tokenizer
    from eval.prompts import Prompt, load_in_turn, rendered

    scoring = run.recipe.eval
    if not scoring.tasks:
        return [
            Prompt(
                trace.source,
                trace.messages,
                category=trace.category,
                task=trace.task,
                tools=trace.tools,
                chat_template_kwargs=trace.chat_template_kwargs,
            )
            for trace in read_traces(run.data.path, "eval")
        ]

    # Prompts of tasks, without those that the draft was trained on.
    kwargs = run.recipe.data.chat_template_kwargs
    prompts = load_in_turn(scoring.tasks, most=scoring.num_prompts, chat_template_kwargs=kwargs)
    has_responses = run.recipe.distill.trains_on_responses and run.data.is_finished
    learned = read_traces(run.data.path, "train") if has_responses else []
    trained_on = {key for trace in learned for key in (trace.prompt_ids, fingerprint_value(trace.messages))}
    fresh = [
        prompt
        for prompt, ids in rendered(load_tokenizer(run.target), prompts)
        if trained_on.isdisjoint((tuple(ids), fingerprint_value(prompt.messages)))
    ]
    if not fresh:
        raise UserError(f"eval.tasks: the draft was trained on all {len(prompts)} prompts. Use others.")
    if len(fresh) < len(prompts):
        print(
            f"eval.tasks: {len(prompts) - len(fresh)} of {len(prompts)} prompts were trained on and are left out",
            file=sys.stderr,
        )
    return fresh


def write_cache(run: Run, finish: Callable[..., None]) -> str:
    with signals_kept():
        from distill.response_batches import read_split
        from distill.teacher_cache import CaptureSettings, capture_teacher

    recipe, teacher = run.recipe, require_cached_teacher(run.recipe.distill.teacher)
    splits = ("train", "eval") if recipe.distill.trains_on_responses else ("eval",)
    joined = recipe.data.responses == "given"
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
        {name: responses.examples for name, responses in read.items()},
        run.teacher_cache.path,
        settings,
        inputs=cache_inputs(run),
        share=run.share,
        finish=partial(finish, dtype=dtype, max_seq_len=recipe.data.max_seq_len),
    )
    return f"{teacher.contents} of the teacher"


def require_cached_teacher(teacher: TeacherConfig) -> TeacherConfig:
    if not teacher.is_cache:
        raise UserError(f"distill.teacher.source is {teacher.source}: nothing to cache. Set it to cache.")
    return teacher


NOT_LAUNCHED = {  # environment of a single process
    **dict.fromkeys(("RANK", "LOCAL_RANK", "NODE_RANK"), "0"),
    **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "1"),
}


def mask_stage(run: Run) -> None:
    """Train learned masks into <run>/masks; raise UserError if masks of other inputs are there."""
    carry_out(run, run.masks, mask_inputs, lambda *_: run_training(run), changed="refuse")


def distill_stage(run: Run, *options: str) -> None:
    """Train <run>/checkpoints and export <run>/draft; `options` are further options of distill.train."""
    if run.share.lead(lambda: is_trained(run)):
        print(f"   {run.draft.path}: up to date{'; no step to profile' if options else ''}")
        return
    run_training(run, *options)


def is_trained(run: Run) -> bool:
    """Return True if a finished draft of the recipe's inputs exists."""
    require_training_inputs(run)
    draft = run.draft.manifest
    return bool(draft is not None and draft.get("finished") and not changed_inputs(draft, draft_inputs(run)))


def run_training(run: Run, *options: str) -> None:
    """Run `distill.train` in subprocesses; if they fail, exit as they did.

    They inherit this process's locks, so a run stays owned for as long as it trains.

    Args:
        run: Trained by all processes of its `share`; by this one alone, on its own device, if that has one of several.
    """
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}  # a user's eval.py in the working directory must not hide eval
    command = training_command([*run.training_words, *options])
    if run.share.count > 1:
        environment |= run.share.lead(meeting_place)
    elif is_launched():
        environment |= {**NOT_LAUNCHED, **own_device()}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()  # memory that this process has cached but does not use
    with subprocess.Popen(command, env=environment, pass_fds=tuple(held.values())) as training:
        before = signal.signal(signal.SIGTERM, lambda *_: training.terminate())  # it reports the signal
        try:
            code = training.wait()
        except BaseException:
            training.kill()
            raise
        finally:
            signal.signal(signal.SIGTERM, before)
    if code == EXIT_CODE:  # interrupted, which this process reports
        raise KeyboardInterrupt
    if code < 0:  # ended by a signal, as this process ends now
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    if code != 0:
        sys.exit(code)
    run.share.meet()


def meeting_place() -> dict[str, str]:
    """Return a rendezvous for the training processes: the launcher's is in use by the processes that start them."""
    with closing(socket.socket()) as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    return {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "False"}  # else torchrun's store would be used


def own_device() -> dict[str, str]:
    """Return an environment in which only this process's GPU is visible; empty on CPU."""
    import torch

    if not torch.cuda.is_available():
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]
    return {"CUDA_VISIBLE_DEVICES": names[torch.cuda.current_device()]}


def training_command(words: Sequence[str]) -> list[str]:
    """Return the training command: one process per GPU by Composer's launcher, unless already launched."""
    import torch

    several = torch.cuda.device_count() > 1 and not is_launched()
    launcher = ["composer", "-n", str(torch.cuda.device_count()), "-m"] if several else []
    return [sys.executable, "-m", *launcher, "distill.train", *words]


def run_until_trained(run: Run) -> None:
    """Check, prune, generate, cache and distill; skip current stages.

    Learned masks are trained first, if the recipe has them. Responses precede pruning if pruning uses their token
    counts.
    """
    run.share.lead(lambda: check_first(run))
    if run.recipe.architecture.stages is not None:
        run_earlier_stages(run)
    if run.recipe.architecture.method == "learned_masks":
        timed("masks", lambda: mask_stage(run))
    first_two = {"prune": prune_stage, "generate": generate_stage}
    for name in reversed(first_two) if counts_responses(run.recipe) else first_two:
        timed(name, partial(first_two[name], run))
    cache_if_configured(run)
    timed("distill", lambda: distill_stage(run))


def run_all(run: Run) -> None:
    """Train, evaluate, report and push; skip current stages; print the headline."""
    run_until_trained(run)
    timed("eval", lambda: eval_stage(run))
    timed("report", lambda: report_stage(run))
    if run.recipe.distill.push_to_hub is not None:
        timed("push", lambda: push_stage(run))
    run.share.lead(lambda: print_outcome(run))


def owned_by_the_first(run: Run) -> AbstractContextManager[None]:
    """Own a run for the duration of the block; the first of several processes owns it for all."""
    return owned_run(run) if run.share.leads else nullcontext()


def check_first(run: Run) -> None:
    """Run all checks of `widedraft check` before the first stage computes anything."""
    start_s = time.monotonic()
    check_recipe(run.recipe)
    print(f"== check: the recipe is valid ({time.monotonic() - start_s:.1f} s)", flush=True)


def run_earlier_stages(run: Run) -> None:
    """Prune and distill every stage before the last, each from the draft of the one before.

    The teacher is cached after the first pruning, which decides the ids of cached entries.
    """
    timed("generate", lambda: generate_stage(run))
    for stage in earlier_stages(run):
        print(f"== stage of {stage.recipe.architecture.layers} layers, in {stage.folder}", flush=True)
        with owned_by_the_first(stage):
            run.share.lead(partial(share_responses, run, stage))
            timed("prune", partial(prune_stage, stage))
            cache_if_configured(run)
            timed("distill", partial(distill_stage, stage))


def timed(name: str, stage: Callable[[], None]) -> None:
    print(f"== {name}", flush=True)
    start_s = time.monotonic()
    stage()
    print(f"   {name} took {time.monotonic() - start_s:.0f} s", flush=True)


def print_outcome(run: Run) -> None:
    print()
    print_scores(run)
    print(f"draft: {run.draft.path}\nreport: {run.eval.path / 'report.html'}")


def print_scores(run: Run) -> None:
    from eval.scorecard_tables import summary

    print(f"{summary(read_scorecard(run))}\nscorecard: {run.eval.path / 'scorecard.md'}")


def prune_stage(run: Run) -> None:
    carry_out(run, run.init, prune_inputs, cut_draft)


def generate_stage(run: Run, part: ShardPart = EVERY_FILE) -> None:
    """Write the responses to the prompts into <run>/data.

    Raises:
        UserError: If a part is requested of prompts that the target generates itself.
    """
    if part != EVERY_FILE and run.recipe.data.self_written_prompts:
        raise UserError(
            "--shard: not supported with data.self_written_prompts, which one job must generate. Remove --shard."
        )
    wanted = run.recipe.architecture.vocabulary

    def require() -> None:
        if wanted is not None:
            require_possible_ids(wanted, run.target, shape_of(run.target).vocab)

    carry_out(run, run.data, generate_inputs, partial(write_responses, part=part), require=require)


def cache_stage(run: Run) -> None:
    """Write the teacher's outputs for the responses in <run>/data into <run>/teacher_cache.

    Raises:
        UserError: If the recipe has no cached teacher, the responses are not the recipe's, a cache of other inputs
            exists, or entries of a reduced vocabulary are needed before pruning.
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
        UserError: If the recipe has no cached teacher, the cache is not finished, or a file has changed.
    """
    require_cached_teacher(run.recipe.distill.teacher)
    folder = run.teacher_cache.path
    print(f"   {folder}: {verify_files(folder)} files match their checksums")


def cache_if_configured(run: Run) -> None:
    if run.recipe.distill.teacher.is_cache:
        timed("cache", lambda: cache_stage(run))


def eval_stage(run: Run) -> None:
    """Evaluate <run>/draft and the undistilled <run>/init against the target, into <run>/eval."""
    drafts = (run.init, run.draft)
    carry_out(
        run,
        run.eval,
        eval_inputs,
        score_draft,
        require=lambda: [draft.require_finished() for draft in drafts],
        changed="replace",  # scoring costs minutes, not hours
    )
    run.share.lead(lambda: use_best_k(run))


def export_stage(run: Run) -> None:
    """Export <run>/draft from the checkpoint that the recipe selects, even if training has not finished.

    The draft of a finished training run stays finished, and stays as it is unless the export's keys have changed.
    """
    from distill.checkpoints.folders import chosen_checkpoint
    from distill.export import export_draft

    draft = run.draft.manifest or {}
    finished = bool(draft.get("finished")) and set(changed_inputs(draft, draft_inputs(run))) <= {"export"}
    if finished and run.draft.is_current(draft_inputs(run)):
        return
    saved = run.checkpoints.path
    checkpoint = chosen_checkpoint(saved, run.recipe.export.checkpoint)
    if checkpoint is None:
        raise UserError(f"{saved}: no checkpoint to export. Run {command_of('distill')} first.")
    export_draft(run, checkpoint, finished=finished)
    print(f"   {run.draft.path}: from {checkpoint}")


def checkpoints_stage(run: Run) -> None:
    """Evaluate every saved checkpoint on the responses of <run>/eval, and rewrite the report."""
    from architectures.console import terminal
    from distill.export import saved_models
    from eval.checkpoint_curve import curves_page, score_checkpoints
    from eval.engines.external_generate import responses_by

    eval_stage(run)
    folder, recipe = run.eval.path, run.recipe
    with responses_by(recipe.generate) as kind:
        how = {"seed": recipe.seed, "generated_by": kind, "holding": recipe.target.holding, "share": run.share}
        curves = score_checkpoints(run.target, saved_models(run), eval_prompts(run), recipe.eval, folder, **how)
    report_stage(run)
    print(f"report: {folder / 'report.html'}\n\n{terminal(curves_page(curves))}")


def report_stage(run: Run) -> None:
    from eval.report import write_report

    run.share.lead(lambda: write_report([run.eval.path], run.eval.path / "report.html"))


def push_stage(run: Run) -> None:
    """Push the draft to distill.push_to_hub; a push of unchanged files commits nothing."""
    from distill.hub.publish import push_run
    from distill.hub.push import PushSettings

    wanted = run.recipe.distill.push_to_hub
    assert wanted is not None
    settings = PushSettings(run=run.folder, repo_id=wanted)
    run.share.lead(lambda: print(f"   {push_run(settings)}"))
