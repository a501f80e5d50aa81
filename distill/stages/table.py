"""The stages of a run that leave an artifact: what each makes, and the one place that decides whether it is made.

A stage is finished when its folder holds a manifest; it is current when that manifest records the inputs that the
recipe asks for today. Imports torch only where it computes.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from architectures.checkpoints.generation_settings import SETTINGS_NAME, write_assistant_settings
from architectures.checkpoints.manifest import PACKAGES, Counts, flat, package_version
from architectures.errors import UserError
from distill.process.interrupts import signals_kept
from distill.ranks.same import require_same
from distill.recipe.sections.teacher import TeacherConfig, teacher_dtype
from distill.run.artifact import Artifact
from distill.run.run import Run
from distill.run.stage_inputs import cache_inputs, entry_ids, refuse_orphaned_training
from eval.answers.shards import EVERY_FILE, Part, missing_shards, read_claims

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


def cut_draft(run: Run, finish: Callable[..., None]) -> str:
    """Cut <run>/init out of the target."""
    from architectures.pruning.prune import prune_checkpoint
    from distill.stages.pruning import weights_and_plan

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
    from distill.data.generate import generate_answers
    from distill.data.given import collect_given
    from eval.engines.generate import responses_by

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
    from eval.engines.generate import responses_by
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
    from eval.answers.traces import read_traces
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
