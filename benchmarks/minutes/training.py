"""A training of so many minutes, by the trainer that a recipe gets: cut, measure a step, train, export."""

import shutil
import time
from dataclasses import dataclass
from math import ceil, inf
from pathlib import Path

from composer import Callback, Logger, State, Trainer

from benchmarks.gpu.training import forget_moments, leave_out_checkpoints_and_evaluations
from benchmarks.minutes.cells import Cell
from benchmarks.minutes.record import Phase
from benchmarks.minutes.setting import Setting
from distill.data.batches import AnswerDataset
from distill.estimates.expected_work import expected_reading
from distill.recipe.recipe import Recipe
from distill.recipe.sections.export import ExportConfig
from distill.recipe.sections.optimizer import SchedulerConfig
from distill.recipe.sections.teacher import Cache
from distill.run.progressive import share_answers
from distill.run.run import Run
from distill.stages.running import prune_stage
from distill.teacher_cache.answers import CachedAnswers
from distill.teacher_cache.reader import TeacherCache
from distill.train import export, fit, read_answers
from distill.training.trainer import build_model, build_trainer

MOST_MISSED = 0.15  # of the minutes, either way
MOST_TRAININGS = 2
LEFT_OUT = 2  # first steps of a warm-up, which allocate
Sets = tuple[AnswerDataset | CachedAnswers, AnswerDataset | CachedAnswers]


class Clock(Callback):
    """Notes when the first step began, and when each ended and how many tokens had been read by then."""

    def __init__(self) -> None:
        self.start_s = 0.0
        self.ends_s: list[float] = []
        self.tokens: list[int] = []

    def fit_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        self.start_s = time.perf_counter()

    def batch_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        self.ends_s.append(time.perf_counter())
        self.tokens.append(state.timestamp.token.value)

    @property
    def seconds(self) -> float:
        """From the beginning to the end of the last step."""
        return self.ends_s[-1] - self.start_s

    @property
    def seconds_per_token(self) -> float:
        """Of all steps but the first ones: they differ in length, so the tokens they read are what is compared."""
        first = min(LEFT_OUT, len(self.ends_s) - 1) - 1
        start_s, before = (self.ends_s[first], self.tokens[first]) if first >= 0 else (self.start_s, 0)
        return (self.ends_s[-1] - start_s) / (self.tokens[-1] - before)


@dataclass(frozen=True)
class Trained:
    """What a cell's training did.

    Attributes:
        draft: Its folder.
        phases: What each phase did.
    """

    draft: Path
    phases: tuple[Phase, ...]


def train_cell(setting: Setting, cell: Cell) -> Trained:
    """Train the phases of a cell one after the other, each from the draft of the one before."""
    configuration, draft, phases = cell.configuration, None, []
    for index, way in enumerate(configuration.phases):
        run = setting.work / "cell" / f"phase-{index}"
        shutil.rmtree(run, ignore_errors=True)
        recipe = setting.cell_recipe(configuration, way, run, draft)
        share_answers(Run.of(setting.shared_recipe()), Run.of(recipe))
        prune_stage(Run.of(recipe))
        exported = export_of(recipe, last=index == len(configuration.phases) - 1)
        recipe = recipe.model_copy(update={"seed": cell.seed, "export": exported})
        share_s = 60 * cell.minutes / len(configuration.phases)
        phases.append(train_phase(setting, recipe, share_s, most_epochs=configuration.epochs))
        shutil.rmtree(run / "checkpoints")
        draft = run / "draft"
    assert draft is not None, "there is a phase"
    return Trained(draft, tuple(phases))


def export_of(recipe: Recipe, *, last: bool) -> ExportConfig:
    """As the recipe says; unrounded where another phase begins with the draft."""
    return recipe.export if last else recipe.export.model_copy(update={"dtype": "float32"})


def train_phase(setting: Setting, recipe: Recipe, budget_s: float, *, most_epochs: int | None) -> Phase:
    """Train <run>/init for so long into <run>/draft, with a schedule that ends then.

    One that missed its time by MOST_MISSED is made again, by the time its steps took: minutes are what is compared.

    Args:
        setting: Where.
        recipe: Whose duration is found here.
        budget_s: Seconds of training.
        most_epochs: Bounds the steps as well.
    """
    sets = sets_of(setting, recipe)
    answers = answers_in(sets[0])
    steps_of_epoch = ceil(len(answers) / recipe.distill.global_train_batch_size)
    tokens_of_step = sum(len(example.input_ids) for example in answers.examples) / steps_of_epoch
    step_s = tokens_of_step * warm_seconds_per_token(setting, recipe, sets)
    most_steps = inf if most_epochs is None else most_epochs * steps_of_epoch
    trainings = 0
    while True:
        trainings += 1
        steps = int(min(max(1, round(budget_s / step_s)), most_steps))
        timed = lasting(recipe, steps)
        seconds, expected_step_s = fit_from_the_start(timed, sets), step_s
        step_s = seconds / steps
        if trainings == MOST_TRAININGS or steps == most_steps or abs(seconds / budget_s - 1) <= MOST_MISSED:
            break
    export(Run.of(recipe))
    reading = expected_reading(timed.distill, len(answers))
    assert reading is not None, "steps are known"
    return Phase(
        budget_s=budget_s,
        seconds=seconds,
        trainings=trainings,
        expected_step_s=expected_step_s,
        steps=steps,
        epochs=reading.answers / len(answers),
        answers=len(answers),
        answer_tokens_seen=round(reading.answers * answers.counts.answer_tokens / len(answers)),
    )


def lasting(recipe: Recipe, steps: int) -> Recipe:
    """The recipe with a training of so many steps."""
    return recipe.model_copy(update={"distill": recipe.distill.model_copy(update={"max_duration": f"{steps}ba"})})


def fit_from_the_start(recipe: Recipe, sets: Sets) -> float:
    """Train <run>/init into a checkpoint, whatever was trained there before; seconds of its steps."""
    run = Run.of(recipe)
    for folder in (run.checkpoints.path, run.logs):
        shutil.rmtree(folder, ignore_errors=True)
    return seconds_of_fit(recipe, trainer_of(recipe, sets))


def seconds_of_fit(recipe: Recipe, trainer: Trainer) -> float:
    """Train to the end; seconds of the steps."""
    clock = Clock()
    trainer.state.callbacks.append(clock)
    try:
        fit(Run.of(recipe), trainer)
    finally:
        trainer.engine.close()
        forget_moments(trainer)
    return clock.seconds


def sets_of(setting: Setting, recipe: Recipe) -> Sets:
    """The answers, with what the teacher said of them where it is cached; of the held-out ones the first alone.

    An evaluation at the end is part of every training, and says nothing that is not scored afterwards.
    """
    sets: list[AnswerDataset | CachedAnswers] = []
    cached = isinstance(recipe.distill.teacher, Cache)
    for name, answers in zip(("train", "eval"), read_answers(Run.of(recipe)), strict=True):
        cache = TeacherCache(setting.shared_run / "teacher_cache", name) if cached else None
        sets.append(answers if cache is None else CachedAnswers(answers, cache))
    train_set, eval_set = sets
    held_out = answers_in(eval_set)
    held_out.examples = held_out.examples[:1]
    return train_set, eval_set


def answers_in(answer_set: AnswerDataset | CachedAnswers) -> AnswerDataset:
    return answer_set.answers if isinstance(answer_set, CachedAnswers) else answer_set


def warm_seconds_per_token(setting: Setting, recipe: Recipe, sets: Sets) -> float:
    """How long a step takes for each token it reads, by a few steps of a model that is thrown away."""
    constant = SchedulerConfig(name="constant_with_warmup", t_warmup="0ba")
    timed = recipe.model_copy(
        update={
            "run_dir": str(setting.work / "cell" / "warm-up"),
            "distill": recipe.distill.model_copy(update={"scheduler": constant}),
        }
    )
    trainer = trainer_of(lasting(timed, setting.warm_up_steps), sets, init=recipe)
    leave_out_checkpoints_and_evaluations(trainer)
    clock = Clock()
    trainer.state.callbacks.append(clock)
    try:
        trainer.fit()
    finally:
        trainer.engine.close()
        forget_moments(trainer)
    return clock.seconds_per_token


def trainer_of(recipe: Recipe, sets: Sets, *, init: Recipe | None = None) -> Trainer:
    """A trainer at its start; of the student in another recipe's run, if one is given."""
    model = build_model(Run.of(init or recipe), eval_tasks=answers_in(sets[1]).tasks)
    train_set, eval_set = sets
    return build_trainer(Run.of(recipe), model, train_set=train_set, eval_set=eval_set, checkpoint=None)
