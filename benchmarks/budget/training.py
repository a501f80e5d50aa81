"""One training of a budget by the trainer that a recipe gets: cut, text, answers; and what is accepted of its draft."""

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil
from pathlib import Path
from typing import Any, cast

from torch import Tensor
from torch.utils.data import Dataset

from benchmarks.budget.own_run import own_budget
from benchmarks.budget.setting import TEXT_BATCH, TEXT_SEQ_LEN, Setting
from benchmarks.minutes.training import answers_in, seconds_of_fit
from distill.budget.law import Budget
from distill.budget.record import Training
from distill.data.batches import AnswerDataset
from distill.recipe.recipe import Recipe
from distill.recipe.sections.teacher import Cache
from distill.run.progressive import share_answers
from distill.run.run import Run
from distill.stages.running import prune_stage
from distill.stages.table import eval_prompts
from distill.teacher_cache.answers import CachedAnswers
from distill.teacher_cache.reader import TeacherCache
from distill.train import export, read_answers, read_split
from distill.training.trainer import build_model, build_trainer
from eval.acceptance.counts import pool, tau
from eval.acceptance.draft_scores import DraftScore
from eval.decoding.sampling import Sampling
from eval.latency.machine import torch_threads
from eval.models.loading import load_model
from eval.scorecard.answers import Answers, record_answers
from eval.scorecard.loaded_models import Pair, replay_drafts

GREEDY = 0.0
DRAFT = "draft"
TEXT_STEP = TEXT_BATCH * TEXT_SEQ_LEN  # tokens of a step on text
Set = AnswerDataset | CachedAnswers


@dataclass(frozen=True)
class Some(Dataset[Any]):
    """Some of a set's examples."""

    of: Set
    indices: Sequence[int]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.of[self.indices[index]]

    def collate(self, examples: Sequence[Any]) -> dict[str, Tensor]:
        """One batch, as the set makes it."""
        return self.of.collate(examples)


@dataclass(frozen=True)
class Trained:
    """A draft, and what making it took.

    Attributes:
        draft: Its folder.
        budget: What was really read.
        answers_s: Seconds of training on answers; 0 if it was not timed.
        text_s: Seconds of training on text.
    """

    draft: Path
    budget: Budget
    answers_s: float
    text_s: float


def make_training(setting: Setting, target: Path, asked: Budget, foretold: tuple[float, ...]) -> Training:
    """Train and score one budget; what the recipe's own run made of it is scored alone."""
    trained = own_run(setting, asked) or train(setting, asked)
    score = scored(setting, target, trained.draft)
    match = sum(int(answer.matches.sum()) for answer in score.answers) / sum(len(a.matches) for a in score.answers)
    return Training(
        asked=asked,
        budget=trained.budget,
        answers_s=trained.answers_s,
        text_s=trained.text_s,
        taus=tuple(tau(pool([each.counts[k] for each in score.answers])) for k in range(1, setting.lookahead + 1)),
        greedy_match=match,
        foretold=foretold,
    )


def own_run(setting: Setting, asked: Budget) -> Trained | None:
    """The draft of the recipe's own run, if that is what is asked for; its training was not timed."""
    recipe = setting.shared_recipe()
    return Trained(Run.of(recipe).draft.path, asked, 0.0, 0.0) if asked == own_budget(recipe) else None


def train(setting: Setting, asked: Budget) -> Trained:
    """Cut a draft and train it on text, where the budget has some, and then on answers."""
    folder, text_s, text_tokens = setting.work / "training", 0.0, 0
    shutil.rmtree(folder, ignore_errors=True)
    source = cut(setting, setting.cut_recipe(asked, folder / "cut"))
    if asked.text_tokens:
        steps = ceil(asked.text_tokens / TEXT_STEP)
        recipe = setting.text_recipe(asked, folder / "text", source, steps)
        cut(setting, recipe)
        text_s = fitted(recipe, None, held_out(recipe))
        source, text_tokens = folder / "text" / "draft", steps * TEXT_STEP
    answers_s, answer_tokens = train_on_answers(setting, asked, source, folder / "answers")
    read = replace(asked, answer_tokens=answer_tokens, text_tokens=text_tokens)
    return Trained(folder / "answers" / "draft", read, answers_s, text_s)


def train_on_answers(setting: Setting, asked: Budget, source: Path, run: Path) -> tuple[float, int]:
    """Train the source on the budget's answers into <run>/draft; seconds, and distinct answer tokens."""
    recipe = setting.answers_recipe(asked, run, source, steps=1)
    cut(setting, recipe)
    some, eval_set, answer_tokens = some_answers(setting, recipe, asked.answer_tokens)
    steps = max(1, round(asked.epochs * len(some) / recipe.distill.global_train_batch_size))
    recipe = setting.answers_recipe(asked, run, source, steps)
    return fitted(recipe, cast("Set", some), eval_set), answer_tokens


def cut(setting: Setting, recipe: Recipe) -> Path:
    """Cut <run>/init, beside the answers that all trainings share."""
    share_answers(Run.of(setting.shared_recipe()), Run.of(recipe))
    prune_stage(Run.of(recipe))
    return Run.of(recipe).init.path


def fitted(recipe: Recipe, train_set: Set | None, eval_set: Set) -> float:
    """Train <run>/init into <run>/draft; seconds of its steps."""
    run = Run.of(recipe)
    model = build_model(run, eval_tasks=answers_in(eval_set).tasks)
    trainer = build_trainer(run, model, train_set=train_set, eval_set=eval_set, checkpoint=None)
    seconds = seconds_of_fit(recipe, trainer)
    export(run)
    shutil.rmtree(run.checkpoints.path)
    return seconds


def held_out(recipe: Recipe) -> AnswerDataset:
    """One held-out answer: every training is evaluated at its end, and says nothing there that is not scored after."""
    eval_set = read_split(Run.of(recipe), "eval")
    eval_set.examples = eval_set.examples[:1]
    return eval_set


def some_answers(setting: Setting, recipe: Recipe, tokens: float) -> tuple[Some, Set, int]:
    """Answers that have so many tokens together, drawn from all, with what the teacher said of them; one held-out one.

    Fewer of them are always among more of them, in every training.

    Returns:
        Both, and how many tokens there really are.

    Raises:
        ValueError: If all answers have fewer.
    """
    answers, eval_set = read_answers(Run.of(recipe))
    order = list(range(len(answers)))
    random.Random(recipe.seed).shuffle(order)
    lengths = [answers.examples[index].num_kept for index in order]
    num_kept = num_answers(lengths, tokens)
    sets: list[Set] = [answers, eval_set]
    if isinstance(recipe.distill.teacher, Cache):
        caches = Run.of(setting.shared_recipe()).teacher_cache.path
        named = zip(("train", "eval"), (answers, eval_set), strict=True)
        sets = [CachedAnswers(each, TeacherCache(caches, name)) for name, each in named]
    eval_set.examples = eval_set.examples[:1]
    return Some(sets[0], order[:num_kept]), sets[1], sum(lengths[:num_kept])


def num_answers(lengths: Sequence[int], tokens: float) -> int:
    """How many of the first answers it takes to have so many tokens; errors as above."""
    for count, total in enumerate(accumulate(lengths), start=1):
        if total >= tokens:
            return count
    raise ValueError(f"{tokens:,.0f} answer tokens asked for, and {sum(lengths):,} are there")


def scored(setting: Setting, target: Path, draft: Path) -> DraftScore:
    """Greedy replay of the draft along the held-out answers."""
    recipe, answers = setting.shared_recipe(), scored_answers(setting, target)
    with torch_threads(setting.threads):
        dtype = recipe.eval.dtype
        pair = Pair(load_model(target, dtype=dtype), {DRAFT: load_model(draft, dtype=dtype)})
        [replayed] = replay_drafts(pair, answers, sampling=Sampling.of(GREEDY, recipe.eval.sampling))
    return replayed.scores(range(1, setting.lookahead + 1))[0]


def scored_answers(setting: Setting, target: Path) -> Answers:
    """The target's greedy answers to the held-out prompts, which no training sees; written where missing."""
    recipe = setting.shared_recipe()
    prompts = eval_prompts(Run.of(recipe.model_copy(update={"eval": recipe.eval.model_copy(update={"tasks": ()})})))
    return record_answers(target, prompts, recipe.eval, setting.work / "scored", temperature=GREEDY, seed=recipe.seed)
