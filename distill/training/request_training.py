"""A training on requests, as Composer's trainer wants it: batches, and what happens after every update."""

import torch
from composer import Callback, DataSpec
from composer.utils import dist
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from architectures.errors import UserError
from distill.online.buffer import Buffer
from distill.online.feed import RequestFeed, count_tokens
from distill.online.guard import Guard
from distill.online.updates import Updates, journal_of
from distill.recipe.recipe import save_recipe
from distill.recipe.sections.online import OnlineConfig
from distill.requests.answers import recorded_answers
from distill.requests.arrivals import RecordedRequests, Requests
from distill.requests.chances import Asker
from distill.requests.journal import Journal, Share
from distill.requests.live import LiveRequests
from distill.requests.served import Served
from distill.run.run import RECIPE_NAME, Run
from distill.teacher.cached import CachedTeacher
from distill.training.dataspec import Widths, split_batch
from distill.training.model import DistillModel
from eval.decoding.sampling import Sampling
from eval.streams.stream import open_stream

FOLDER, RECORDS = "online", "records.jsonl"  # in the run folder


def online_of(run: Run) -> OnlineConfig:
    """The settings of a run that learns from requests."""
    online = run.recipe.distill.online
    assert online is not None, "a recipe in online mode has them"
    return online


def request_training(
    run: Run, model: DistillModel, optimizer: Optimizer, *, batch_size: int
) -> tuple[DataSpec, list[Callback], int | None]:
    """This process's batches of what its requests teach, what judges, hands over and logs, and how many come.

    Args:
        run: In online mode.
        model: The student, beside the head of its teacher.
        optimizer: Of the student.
        batch_size: Requests of a step on this process.

    Raises:
        UserError: If requests cannot be read, or have no recorded answers where such are asked for.
    """
    online, recipe = online_of(run), run.recipe
    share = share_of(online)
    journal = journal_of(run.folder / FOLDER, share.rank, share)
    asker = asker_of(run, model)
    requests = open_requests(run, asker, journal)
    buffer = Buffer(online.buffer_size, online.eviction, recipe.seed)
    feed = RequestFeed(
        requests, buffer, positions=online.positions, steps=online.steps_per_update, batch_size=batch_size
    )

    def alpha(served: Served) -> float:
        return asker.chances(served.prompt_ids, served.answer_ids, served.hidden_AH).alpha

    guard = Guard(online.guard, model.student.lm, optimizer, alpha)
    updates = Updates(feed, guard, records=run.folder / FOLDER / RECORDS, checkpoints=run.checkpoints.path)
    data = DataSpec(
        DataLoader(feed, batch_size=None),
        split_batch=split_batch,  # pyright: ignore[reportArgumentType]  # as in distill/training/dataspec.py
        microbatch_transforms=Widths.of(recipe).fit,
        get_num_tokens_in_batch=count_tokens,  # pyright: ignore[reportArgumentType]
    )
    updates_to_come = num_updates(run, requests)
    return data, [updates], None if updates_to_come is None else updates_to_come * online.steps_per_update


def share_of(online: OnlineConfig) -> Share:
    """This process's share of the stream.

    Raises:
        UserError: If the processes cannot share the requests between two updates evenly.
    """
    if online.update_interval % dist.get_world_size():
        raise UserError(
            "distill.online.update_interval must be a multiple of the number of processes, got "
            f"{online.update_interval} and {dist.get_world_size()}. Change one of the two."
        )
    return Share(dist.get_global_rank(), dist.get_world_size(), online.update_interval)


def asker_of(run: Run, model: DistillModel) -> Asker:
    """What asks the student about answers."""
    assert isinstance(model.teacher, CachedTeacher), "in online mode the teacher's states come with the requests"
    sampling = Sampling(run.recipe.data.temperature, top_p=run.recipe.data.top_p)
    return Asker(model.student.lm, model.teacher.head, model.vocab_size, sampling)


def open_requests(run: Run, asker: Asker, journal: Journal) -> Requests:
    """This process's share of the requests."""
    online = online_of(run)
    journal.folder.mkdir(parents=True, exist_ok=True)
    if online.answers == "recorded":
        return RecordedRequests(recorded_answers(run), asker, journal, online.lookahead, run.recipe.seed)
    own = journal.folder / RECIPE_NAME  # that of the run may be of another command, with other overrides
    save_recipe(run.recipe, own)
    return LiveRequests(own, journal, yields=not (online.waits or torch.cuda.is_available()))


def num_updates(run: Run, requests: Requests) -> int | None:
    """How many updates the stream makes; None where nobody knows how many requests will come."""
    online = online_of(run)
    if isinstance(requests, RecordedRequests):
        return len(requests.recorded) // online.update_interval
    known = None if online.stream.follow else online.stream.num_requests
    if known is None and not online.stream.follow and all(source.path for source in online.stream.sources):
        known = sum(1 for _ in open_stream(online.stream, seed=run.recipe.seed))
    return None if known is None else known // online.update_interval


def stream_in_batches(max_duration: str, num_batches: int | None) -> str:
    """The length of a training on a stream, in batches.

    Raises:
        UserError: If that is the whole stream, and nobody knows how long it is, or it ends before the first update.
    """
    if not max_duration.endswith("ep"):
        return max_duration
    if num_batches is None:
        raise UserError(
            f"distill.max_duration is {max_duration}, and nobody knows how many requests distill.online.stream will "
            "have. Set distill.max_duration in ba, which counts optimiser steps, or stream.num_requests."
        )
    if not num_batches:
        raise UserError(
            "distill.online.stream: ends before distill.online.update_interval requests. Give more requests, or update "
            "after fewer."
        )
    return f"{num_batches}ba"
