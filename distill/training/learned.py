"""What a training learns from: answers, requests or text, and how long that is."""

from dataclasses import dataclass

import torch
from composer import Callback, DataSpec
from composer.utils import dist
from torch.utils.data import DataLoader

from distill.data.batches import AnswerDataset
from distill.online.learning import request_training, stream_in_batches
from distill.recipe.sections.times import split_time
from distill.recipe.sections.training import DistillConfig
from distill.run.run import Run
from distill.teacher_cache.answers import CachedAnswers
from distill.training.answer_training import answer_training
from distill.training.batch_sizes import device_batch_size
from distill.training.model import DistillModel
from distill.training.text_training import text_training, without_dur


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
