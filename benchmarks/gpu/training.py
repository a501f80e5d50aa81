"""One training of random weights on random answers, by the trainer of `distill.train`: how long its steps take.

What a step takes depends on shapes and lengths, not on weights or words: nothing is read from a hub, and on a GPU both
models are drawn where they stay, in their own number type. Checkpoints and evaluations are no part of a step, so
neither is made. Seconds are those that a training logs about each of its batches.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

import torch
from composer import Trainer
from composer.callbacks import SpeedMonitor

from architectures.shapes.shape import Shape
from benchmarks.gpu.models import random_model
from benchmarks.gpu.stage import Row
from benchmarks.loss import peak, reset_peak
from benchmarks.teacher_cache import write_cache
from distill.data.batches import AnswerDataset
from distill.estimates.memory import memory_parts, together
from distill.estimates.trainings import trainings
from distill.losses.answer_logits import AnswerLogits
from distill.losses.chunked import Head
from distill.monitoring.callbacks import CheckpointWriter
from distill.monitoring.flops import forward_flops, head_flops, training_flops
from distill.monitoring.step_times import PHASES
from distill.recipe.recipe import Recipe, load_recipe
from distill.recipe.sections.teacher import HiddenCache, teacher_dtype
from distill.run.run import Run
from distill.teacher.cached import CachedTeacher
from distill.teacher.live import Teacher
from distill.teacher_cache.answers import CachedAnswers
from distill.teacher_cache.index import fingerprint_examples
from distill.teacher_cache.reader import TeacherCache
from distill.training.model import DistillModel
from distill.training.trainer import build_trainer, distill_model
from eval.answers.traces import Trace

Source = Literal["live", "cached", "none"]
ANSWER_SHARE = 4  # the last of so many parts of a sequence is the answer; recipes assume 300 of 1,000 tokens
SHORTEST_SHARE = 4  # of mixed lengths: the shortest sequence may be one of so many parts of the longest


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is trained on, and how.

    Attributes:
        source: Of the teacher's words; "none" learns the answers' tokens alone.
        seq_len: Tokens of a sequence, or of the longest where lengths are mixed.
        microbatch: Sequences of a forward pass.
        batch: Sequences of a step: that many over microbatch are accumulated.
        steps: That are timed.
        warmup: Steps before them.
        optimizer: As in a recipe.
        packing: As in a recipe.
        mixed_lengths: Whether sequences differ in length; else there is no padding.
    """

    source: Source
    seq_len: int
    microbatch: int
    batch: int
    steps: int
    warmup: int
    optimizer: str = "adamw"
    packing: bool = False
    mixed_lengths: bool = False

    @property
    def num_answers(self) -> int:
        """Sequences of all steps."""
        return (self.steps + self.warmup) * self.batch


@dataclass(frozen=True)
class Pair:
    """A teacher and its student, by name and shape, and the recipe they are trained by."""

    teacher_name: str
    teacher: Shape
    student_name: str
    student: Shape
    recipe: Path


def recipe_of(pair: Pair, cell: Cell, run: Path, precision: str) -> Recipe:
    """The pair's recipe with what the cell changes of it."""
    settings = {
        "run_dir": run,
        "data.max_seq_len": cell.seq_len + 1,  # the last token is only predicted
        "data.max_new_tokens": cell.seq_len // ANSWER_SHARE,
        "distill.precision": precision,
        "distill.teacher.source": "live" if cell.source == "live" else "cache",
        "distill.loss": "cross_entropy" if cell.source == "none" else "auto",
        "distill.max_duration": "1ep",
        "distill.global_train_batch_size": cell.batch,
        "distill.device_train_microbatch_size": cell.microbatch,
        "distill.packing": str(cell.packing).lower(),
        "distill.optimizer.name": cell.optimizer,
        "distill.scheduler.t_warmup": "1ba",
        "distill.progress_bar": "false",
    }
    return load_recipe(pair.recipe, [f"{key}={value}" for key, value in settings.items()])


def estimated_bytes(pair: Pair, recipe: Recipe) -> int:
    """What `widedraft check` says such a training holds at its fullest."""
    training = trainings(recipe, pair.teacher, pair.student, on_gpu=torch.cuda.is_available())[-1]
    return together(memory_parts(training, 1))


def flops_per_step(pair: Pair, cell: Cell) -> int:
    """FLOPs that a step cannot do without, in the mean over all steps."""
    answers = [(len(each.input_ids), each.num_kept) for each in answers_of(pair, cell).examples]
    of_teacher = {
        "live": forward_flops(pair.teacher, answers),
        "cached": sum(kept for _, kept in answers) * head_flops(pair.teacher.vocab, pair.teacher.hidden),
        "none": 0,
    }
    return training_flops(pair.student, answers, teacher=of_teacher[cell.source]) // (cell.steps + cell.warmup)


def answers_of(pair: Pair, cell: Cell) -> AnswerDataset:
    """Sequences of random tokens, the same for every cell of the same sizes."""
    generator = torch.Generator().manual_seed(0)
    shortest = cell.seq_len // SHORTEST_SHARE if cell.mixed_lengths else cell.seq_len
    lengths = torch.randint(shortest, cell.seq_len + 1, (cell.num_answers,), generator=generator).tolist()
    traces = []
    for number, length in enumerate(lengths):
        ids = torch.randint(pair.student.vocab, (length + 1,), generator=generator).tolist()
        prompt = len(ids) - length // ANSWER_SHARE
        traces.append(Trace(number, f"bench:{number}", (), tuple(ids[:prompt]), tuple(ids[prompt:]), "", "length"))
    return AnswerDataset(traces, max_seq_len=cell.seq_len + 1)


def measure_training(pair: Pair, cell: Cell, recipe: Recipe, device: torch.device, *, idle_bytes: int) -> Row:
    """Seconds of a step and of its parts, tokens and FLOPs a second, and the peak of memory.

    Args:
        pair: What is trained.
        cell: How.
        recipe: Of both.
        device: Where.
        idle_bytes: What the process held before its first training: a processor's heap keeps what later ones use again.
    """
    run, answers, device_name = Path(recipe.run_dir), answers_of(pair, cell), str(device)
    shutil.rmtree(run, ignore_errors=True)
    reset_peak(device_name)
    with trained_model(pair, cell, recipe, device) as model:
        train_set = with_cache(pair, cell, recipe, answers) if cell.source == "cached" else answers
        trainer = build_trainer(Run.of(recipe), model, train_set=train_set, eval_set=answers, checkpoint=None)
        leave_out_checkpoints_and_evaluations(trainer)
        try:
            trainer.fit()
        finally:
            trainer.engine.close()
            forget_moments(trainer)
        held = peak(device_name) - idle_bytes
    metrics = [json.loads(line) for line in (run / "logs" / "metrics.jsonl").read_text("utf-8").splitlines()]
    shutil.rmtree(run)
    return {
        **speeds(pair, cell, answers, step_seconds(metrics)[cell.warmup :], peak_flops(trainer)),
        "peak_gib": round(held / 2**30, 3),
        "loss_nats": [line["loss/train/total"] for line in metrics if "loss/train/total" in line][-1],
    }


@contextmanager
def trained_model(pair: Pair, cell: Cell, recipe: Recipe, device: torch.device) -> Iterator[DistillModel]:
    """Both models on the device; their memory is free again afterwards, whoever still refers to them."""
    dtype = getattr(torch, teacher_dtype(recipe.target.dtype, recipe.distill.precision))
    student = random_model(pair.student, device, torch.float32).train()
    held = list(student.parameters())
    if cell.source == "live":
        lm = random_model(pair.teacher, device, dtype)
        held += lm.parameters()
        teacher = Teacher(AnswerLogits(lm, packing=recipe.distill.packing))
    else:
        weight_VH = torch.randn(pair.teacher.vocab, pair.teacher.hidden, device=device, dtype=dtype) * 0.02
        teacher = CachedTeacher(Head(weight_VH, None, None, len(weight_VH)))
    try:
        yield distill_model(recipe.distill, recipe.data, student, teacher)
    finally:
        for parameter in held:
            parameter.grad = None
            parameter.data = parameter.data.new_empty(0)


def with_cache(pair: Pair, cell: Cell, recipe: Recipe, answers: AnswerDataset) -> CachedAnswers:
    """The answers beside a cache of random hidden states, as `widedraft cache` lays it out."""
    folder = Run.of(recipe).teacher_cache.path
    write_cache(
        folder,
        fingerprint_examples(answers.examples),
        HiddenCache(source="cache"),
        answers=cell.num_answers,
        answer_tokens=cell.seq_len // ANSWER_SHARE,
        hidden=pair.teacher.hidden,
        vocab=pair.teacher.vocab,
        dtype=teacher_dtype(recipe.target.dtype, recipe.distill.precision),
    )
    return CachedAnswers(answers, TeacherCache(folder, "train"))


def leave_out_checkpoints_and_evaluations(trainer: Trainer) -> None:
    """The end of a training is always evaluated and saved: 15 GB of the 796M shape with its moments."""
    trainer.state.evaluators = []
    [writer] = [each for each in trainer.state.callbacks if isinstance(each, CheckpointWriter)]
    trainer.state.callbacks = [each for each in trainer.state.callbacks if each is not writer]
    writer.close(trainer.state, trainer.logger)


def forget_moments(trainer: Trainer) -> None:
    """Composer keeps every trainer's state until the process ends (atexit, in its Engine)."""
    for optimizer in trainer.state.optimizers:
        optimizer.state.clear()


def step_seconds(metrics: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """Seconds of each phase of each batch."""
    return [{phase: line[f"step/{phase}_s"] for phase in PHASES} for line in metrics if "step/student_s" in line]


def speeds(
    pair: Pair, cell: Cell, answers: AnswerDataset, steps: Sequence[dict[str, float]], peak_flops: float | None
) -> Row:
    """The median step, and what goes through the device in a second of it."""
    step_s = median(sum(phases.values()) for phases in steps)
    tokens = sum(len(each.input_ids) for each in answers.examples) / (cell.steps + cell.warmup)
    answer_tokens = answers.counts.answer_tokens / (cell.steps + cell.warmup)
    flops_per_s = flops_per_step(pair, cell) / step_s
    return {
        "step_s": round(step_s, 5),
        **{f"{phase}_s": round(median(each[phase] for each in steps), 5) for phase in PHASES},
        "tokens_per_s": round(tokens / step_s, 1),
        "answer_tokens_per_s": round(answer_tokens / step_s, 1),
        "flops_per_s": flops_per_s,
        "mfu": round(flops_per_s / peak_flops, 4) if peak_flops else None,
        "peak_flops": peak_flops or None,
    }


def peak_flops(trainer: Trainer) -> float | None:
    """What the device can do: by Composer's table for a GPU, as measured for a processor; None where unknown."""
    [monitor] = [each for each in trainer.state.callbacks if isinstance(each, SpeedMonitor)]
    return monitor.gpu_flops_available
