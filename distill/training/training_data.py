"""What a training learns from: answers, requests or text; how long that is, and how much of it a step takes."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from composer import Callback, DataSpec
from composer.utils import dist
from torch.utils.data import DataLoader

from architectures.errors import UserError
from architectures.shapes.section import MasksConfig
from distill.data.batches import AnswerDataset
from distill.online.learning import request_training, stream_in_batches
from distill.recipe.sections.times import split_time
from distill.recipe.sections.training import DistillConfig
from distill.rollouts import Rollouts, Writer, Writers
from distill.run.run import Run
from distill.teacher import Teacher
from distill.teacher_cache import CachedAnswers
from distill.training.batches import Widths, build_dataspec
from distill.training.model import DistillModel
from distill.training.text_training import text_training, without_dur
from eval.decoding.sampling import Sampling
from eval.models.loading import stop_token_ids


def device_batch_size(config: DistillConfig | MasksConfig) -> int:
    """Sequences per step on one process.

    Raises:
        UserError: If the processes cannot share the global batch evenly.
    """
    size, remainder = divmod(config.global_train_batch_size, dist.get_world_size())
    if remainder:
        section = "distill" if isinstance(config, DistillConfig) else "architecture.masks"
        raise UserError(
            f"{section}.global_train_batch_size must be a multiple of the number of processes, got "
            f"{config.global_train_batch_size} and {dist.get_world_size()}. Change one of the two."
        )
    return size


def microbatch_size(size: int | Literal["auto"], config: DistillConfig | MasksConfig) -> int | Literal["auto"]:
    """Sequences per forward and backward pass. Composer finds it on GPUs; on a CPU auto is the device's batch."""
    return device_batch_size(config) if size == "auto" and not torch.cuda.is_available() else size


def answer_training(
    run: Run, model: DistillModel, train_set: AnswerDataset | CachedAnswers, *, batch_size: int
) -> tuple[DataSpec, list[Callback]]:
    """This process's batches of answers, and what writes some anew, where the recipe wants it."""
    samples, seed = run.recipe.distill.samples, run.recipe.seed
    widths = Widths.of(run.recipe)
    build = partial(build_dataspec, train_set, device_batch_size=batch_size, shuffle=True, seed=seed, widths=widths)
    if not samples.writes:
        return build(), []
    rollouts = Rollouts(samples, writers_of(run, model), seed=seed, clock=model.clock)
    return build(rewritten=rollouts.rewritten), [rollouts]


def writers_of(run: Run, model: DistillModel) -> Writers:
    """The student, and the live teacher where it writes tokens, each as the recipe wants it to choose."""
    data, samples, student = run.recipe.data, run.recipe.distill.samples, model.student.lm
    temperature = data.temperature if samples.temperature is None else samples.temperature
    teacher = None
    if samples.source == "mix_token":
        assert isinstance(model.teacher, Teacher), "recipes in which it writes have a live one"
        teacher = Writer(model.teacher.model.lm, Sampling(data.temperature, data.top_p))
    return Writers(
        Writer(student, Sampling(temperature, data.top_p)),
        teacher,
        stop_token_ids(student),
        vocab_size=model.vocab_size,
        max_new_tokens=samples.max_new_tokens or data.max_new_tokens,
        max_seq_len=data.max_seq_len,
    )


@dataclass(frozen=True)
class Learned:
    """What a training learns from.

    Attributes:
        spec: This process's batches.
        callbacks: What keeps a stream of them going.
        max_duration: Of the training, in batches where the recipe says epochs.
    """

    spec: DataSpec
    callbacks: list[Callback]
    max_duration: str


def training_data(
    run: Run, model: DistillModel, optimizer: torch.optim.Optimizer, train_set: AnswerDataset | CachedAnswers | None
) -> Learned:
    """This process's batches of answers, of requests, or of text, and what writes or feeds them."""
    config, size = run.recipe.distill, device_batch_size(run.recipe.distill)
    if config.mode == "online":
        spec, callbacks, num_batches = request_training(run, model, optimizer, batch_size=size)
        return Learned(spec, callbacks, stream_in_batches(config.max_duration, num_batches))
    if train_set is not None:
        spec, callbacks = answer_training(run, model, train_set, batch_size=size)
        return Learned(spec, callbacks, epochs_in_batches(config.max_duration, spec))
    device = f"cuda:{dist.get_local_rank()}" if torch.cuda.is_available() else "cpu"
    return Learned(*text_training(run, model, batch_size=size, device=torch.device(device)), config.max_duration)


def interval(time: str, config: DistillConfig, learned: Learned) -> str:
    """A time as Composer takes it: text and requests have no length, of which it could take a share."""
    has_length = config.train_on == "answers" and config.mode == "offline"
    return time if has_length else without_dur(time, learned.max_duration)


def epochs_in_batches(max_duration: str, train_data: DataSpec) -> str:
    """The same duration, in batches if it was in epochs.

    Composer saves the last batch of an epoch before it counts the epoch as done, so a training measured in epochs would
    look unfinished in its own last checkpoint.
    """
    value, unit = split_time(max_duration)
    assert isinstance(train_data.dataloader, DataLoader)
    return f"{int(value) * len(train_data.dataloader)}ba" if unit == "ep" else max_duration
