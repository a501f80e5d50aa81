"""The stages of a run that leave an artifact: what each makes, from what, and when it is refused.

Training is a stage too, in processes of its own: distill/stages/training.py. Heavy imports happen inside the stages:
`widedraft check` and `--help` never pay for them.
"""

from typing import TYPE_CHECKING

from architectures.checkpoints.generation_settings import SETTINGS_NAME, write_assistant_settings
from architectures.checkpoints.manifest import Counts, flat
from distill.cache_files import is_whole
from distill.cache_stage import require_own_answers, write_cache
from distill.run.run import Run
from distill.run.stage import Finish, Stage
from distill.run.stage_inputs import cache_inputs, eval_inputs, generate_inputs, prune_inputs, refuse_orphaned_training
from eval.answers.shards import EVERY_FILE, Part, missing_shards, read_claims

if TYPE_CHECKING:
    from eval.prompts import Prompt
    from eval.scorecard_schema import Scorecard

NAMES = ("eval", "train")  # of the shards of a run's answers


def cut_draft(run: Run, finish: Finish) -> str:
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


def write_answers(run: Run, finish: Finish, *, part: Part = EVERY_FILE) -> str:
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


def require_drafts(run: Run) -> None:
    """Refuse to score before there is a draft, distilled and undistilled."""
    run.init.require_finished()
    run.draft.require_finished()


def score_draft(run: Run, finish: Finish) -> None:
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


PRUNE = Stage(lambda run: run.init, prune_inputs, cut_draft)
GENERATE = Stage(lambda run: run.data, generate_inputs, write_answers)
CACHE = Stage(
    lambda run: run.teacher_cache,
    cache_inputs,
    write_cache,
    require=require_own_answers,
    is_incomplete=lambda run: not is_whole(run.teacher_cache.path),
    changed="refuse",
)
SCORE = Stage(
    lambda run: run.eval,
    eval_inputs,
    score_draft,
    require=require_drafts,
    changed="replace",  # scoring costs minutes, not hours
    afterwards=use_best_lookahead,
)
