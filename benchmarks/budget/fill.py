"""The trainings that are not there yet, each in a process of its own; those that a law foretells come last."""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from architectures.checkpoints.fingerprint import fingerprint_checkpoint, fingerprint_value
from architectures.checkpoints.manifest import git_commit, package_version, processor_name
from architectures.errors import UserError
from architectures.files.typed_file import read_typed
from benchmarks.budget.own_run import own_budget
from benchmarks.budget.plan import CONFIRMED, FITTED
from benchmarks.budget.setting import Setting
from benchmarks.minutes.fill import in_its_own_process
from distill.budget.law import Budget, fit
from distill.budget.record import FILE, REMEDY, SCHEMA, Training, Trainings, write_trainings
from distill.recipe.recipe import Recipe
from distill.recipe.sections.teacher import Cache, LiveTeacher
from distill.run.recorded import recorded_values
from distill.run.run import Run
from distill.stages.running import cache_stage, generate_stage
from distill.train import restore_signals

RATE_PROMPTS = 96  # answered anew to know how fast the target writes
NOT_DECISIVE = ("run_name", "run_dir", "eval", "export", "text", "tracking")


def fill(setting: Setting) -> Trainings:
    """Make what is missing, and the file after every training.

    Raises:
        UserError: If the file is of another recipe, target or machine.
    """
    restore_signals()  # which importing Composer has taken
    record = begun_file(setting, in_its_own_process(partial(shared, setting), setting.threads))
    own = own_budget(setting.shared_recipe())
    for asked in (*FITTED, *([own] if own else []), *CONFIRMED):
        if asked not in [training.asked for training in record.trainings]:
            foretold = foretold_taus(record, asked, setting.lookahead) if asked in CONFIRMED else ()
            training = in_its_own_process(partial(training_of, setting, asked, foretold), setting.threads)
            record = replace(record, trainings=(*record.trainings, training))
            write_trainings(record, setting.out)
            taus = ", ".join(f"{each:.3f}" for each in training.taus)
            print(f"  {len(record.trainings)}: {training.budget}, {training.answers_s:.0f} s: tau {taus}", flush=True)
    return record


def training_of(setting: Setting, asked: Budget, foretold: tuple[float, ...]) -> Training:
    """One training, in the process made for it."""
    from benchmarks.budget.training import make_training

    return make_training(setting, target_of(setting.shared_recipe()), asked, foretold)


def foretold_taus(record: Trainings, asked: Budget, lookahead: int) -> tuple[float, ...]:
    """What the law of all trainings so far says of one."""
    return tuple(fit(record.budgets, record.taus(each), each).tau(asked) for each in range(1, lookahead + 1))


def begun_file(setting: Setting, made: Mapping[str, Any]) -> Trainings:
    """The file with its trainings, where there is one; else a new one without any.

    Args:
        setting: Says where it is.
        made: What all trainings of a file share, as it is here.

    Raises:
        UserError: If the trainings there are of something else.
    """
    if not setting.out.is_file():
        work = partial(answers_per_s, setting.shared_recipe(), setting.work / "rate")
        rate = in_its_own_process(work, setting.threads)
        created = datetime.now(UTC).isoformat(timespec="seconds")
        return Trainings(schema=SCHEMA, **made, answers_per_s=rate, commit=git_commit(), created=created, trainings=())
    record = read_typed(setting.out, FILE, REMEDY)
    for name, value in made.items():
        if getattr(record, name) != value:
            raise UserError(
                f"{setting.out}: its {name} is {getattr(record, name)}, and here it is {value}. "
                "Trainings of both are not one law's: give another --out."
            )
    return record


def shared(setting: Setting) -> dict[str, Any]:
    """What all trainings read, made where it is missing; and what it is."""
    from benchmarks.budget.training import scored_answers

    recipe = setting.shared_recipe()
    generate_stage(Run.of(recipe))
    require_enough(recipe, FITTED + CONFIRMED)
    if isinstance(recipe.distill.teacher, Cache):
        cache_stage(Run.of(recipe))
    target = target_of(recipe)
    return {
        "target": fingerprint_checkpoint(target),
        "recipe": recipe.run_name,
        "inputs": inputs_of(recipe, setting),
        "tokens_per_answer": tokens_per_answer(recipe),
        "prompts": len(scored_answers(setting, target).traces),
        "processor": processor_name(),
        "threads": setting.threads,
        "torch": package_version("torch") or "",
        "precision": recipe.distill.precision,
    }


def require_enough(recipe: Recipe, budgets: Sequence[Budget]) -> None:
    """Raise UserError if the recipe's answers have fewer tokens than a training asks for."""
    needed, there = max(budget.answer_tokens for budget in budgets), train_counts(recipe)["answer_tokens"]
    if needed > there:
        raise UserError(
            f"{Run.of(recipe).data.path}: has {there:,} answer tokens to train on, and the largest training reads "
            f"{needed:,.0f}. Give the recipe more prompts (data.prompts)."
        )


def train_counts(recipe: Recipe) -> dict[str, int]:
    return (Run.of(recipe).data.manifest or {})["counts"]["train"]


def tokens_per_answer(recipe: Recipe) -> float:
    """Of the answers to train on, in the mean."""
    counts = train_counts(recipe)
    return counts["answer_tokens"] / counts["answers"]


def target_of(recipe: Recipe) -> Path:
    return Run.of(recipe).target


def inputs_of(recipe: Recipe, setting: Setting) -> str:
    """Of the answers, the text and all that the recipe says of training."""
    data = Run.of(recipe).data.inputs
    words = {name: value for name, value in recorded_values(recipe).items() if name not in NOT_DECISIVE}
    for name in ("layers", "scores"):
        words["architecture"].pop(name)
    words["distill"].pop("max_duration")
    return fingerprint_value([words, data, [dict(source) for source in setting.text]])


def answers_per_s(recipe: Recipe, work: Path) -> float:
    """How many answer tokens the target writes in a second: it answers some prompts of the recipe anew."""
    shutil.rmtree(work, ignore_errors=True)
    share = -(-RATE_PROMPTS // len(recipe.data.prompts))
    sources = tuple(source.model_copy(update={"num_prompts": share}) for source in recipe.data.prompts)
    data = recipe.data.model_copy(update={"prompts": sources, "num_eval_prompts": 1})
    distill = recipe.distill.model_copy(update={"teacher": LiveTeacher()})  # no states are kept
    start_s = time.perf_counter()
    run = Run.of(recipe.model_copy(update={"run_dir": str(work), "data": data, "distill": distill}))
    generate_stage(run)
    seconds = time.perf_counter() - start_s
    counts = (run.data.manifest or {})["counts"]
    return (counts["train"]["answer_tokens"] + counts["eval"]["answer_tokens"]) / seconds
