"""A draft that learns from the requests it served: batches, guard, and what happens after every update.

Shape suffixes used in this file:
    B = sequences in the batch, T = tokens per sequence; C = checks, R = requests
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from composer import Callback, DataSpec, Logger, State
from composer.utils import dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from architectures.errors import UserError
from distill.checkpoints.files import find_checkpoints, training_time
from distill.data.batches import collate
from distill.online.replayed import Asker, RecordedRequests, recorded_stream
from distill.online.served import Journal, Positions, RequestRecord, RequestShare, Served, merge_records
from distill.online.serving import LiveRequests, put_back, trained_weights
from distill.recipe.recipe import save_recipe
from distill.recipe.sections.online import Eviction, GuardConfig, OnlineConfig
from distill.run.run import RECIPE_NAME, Run
from distill.teacher import CachedTeacher
from distill.teacher_cache import PREFIX
from distill.training.batches import Widths, split_batch
from distill.training.model import DistillModel
from eval.acceptance.intervals import Array, least_units, t_bound
from eval.decoding.sampling import Sampling
from eval.stream import open_stream

FOLDER, RECORDS = "online", "records.jsonl"  # in the run directory
NEEDED_CHECKPOINTS = 2  # the newest, and the one that is taken where it is damaged
Batch = dict[str, Tensor]
Interval = list[tuple[Served, RequestRecord]]


@dataclass
class Buffer:
    """The places in the stream of the requests that are kept to be learned again.

    What is kept after a request depends on the requests before it and the seed only, so that an interrupted training
    finds the same buffer again by counting from the first.

    Attributes:
        size: At most so many.
        eviction: Whether the oldest makes way, or any with equal probability.
        seed: Of these draws, and of which old requests are learned again.
        kept: Places in the stream, in no order under random eviction.
        evicted: Those that made way with the last call of `add`.
    """

    size: int
    eviction: Eviction
    seed: int
    kept: list[int] = field(default_factory=list)
    evicted: list[int] = field(default_factory=list)

    def add(self, requests: Sequence[int]) -> None:
        """Keep some more; none of them makes way for another of them."""
        self.evicted = []
        for request in requests:
            if len(self.kept) == self.size:
                leaving = 0
                if self.eviction == "random":
                    old = [index for index, kept in enumerate(self.kept) if kept not in set(requests)]
                    leaving = old[int(np.random.default_rng([self.seed, request]).integers(len(old)))]
                self.evicted.append(self.kept.pop(leaving))
            self.kept.append(request)

    def batch(self, new: Sequence[int], *, size: int, step: int) -> list[int]:
        """The new requests, and others that are kept until there are `size`; fewer where no more are kept.

        Args:
            new: What the last update has not learned yet.
            size: Requests of a step.
            step: Of the whole training; each draws others.
        """
        others = [request for request in self.kept if request not in set(new)]
        wanted = min(max(0, size - len(new)), len(others))
        drawn = np.random.default_rng([self.seed, step, 1]).choice(len(others), wanted, replace=False) if wanted else []
        return [*new, *(others[int(index)] for index in sorted(drawn))]


class RequestFeed(IterableDataset[Batch]):
    """One batch for each optimiser step; the requests before an update are served while its first batch is waited for.

    It ends with the last whole interval of the stream, on all processes at once. Its position is in checkpoints.

    Args:
        requests: Of this process.
        buffer: Which of them are kept.
        positions: What is learned of a response.
        steps: Optimiser steps of an update.
        batch_size: Requests of a step on this process.
    """

    def __init__(
        self,
        requests: RecordedRequests | LiveRequests,
        buffer: Buffer,
        *,
        positions: Positions,
        steps: int,
        batch_size: int,
    ) -> None:
        self.requests = requests
        self.buffer = buffer
        self.positions: Positions = positions
        self.steps = steps
        self.batch_size = batch_size
        self.batches = 0  # handed out since the training began
        self.interval: Interval = []  # what the update learns that the last batch belongs to
        self.ended = False
        self.evicted: dict[int, list[int]] = {}  # by update; their files are needed until a checkpoint is behind it

    @property
    def share(self) -> RequestShare:
        return self.requests.journal.share

    def __iter__(self) -> Iterator[Batch]:
        """Batches from where the training stands."""
        while True:
            update, step = divmod(self.batches, self.steps)
            if step == 0 or not self.interval:
                self.interval = self.requests.take(update)
                if not all_have(len(self.interval) == self.share.own):
                    self.ended = True
                    if not self.batches:
                        raise UserError(
                            "distill.online.stream: ends before distill.online.update_interval="
                            f"{self.share.interval} requests. Give more requests, or update after fewer."
                        )
                    return
                self.keep(update)
            new = self.share.of_update(update)
            chosen = self.buffer.batch(new, size=self.batch_size, step=self.batches)
            served = [each for each, _ in self.interval] + self.requests.journal.read(chosen[len(new) :])
            self.batches += 1
            yield batch_of(served, self.positions)

    def keep(self, update: int) -> None:
        """Take the interval into the buffer."""
        self.buffer.add(self.share.of_update(update))
        self.evicted[update] = self.buffer.evicted

    def state_dict(self, num_samples: int | None = None, from_beginning: bool = True) -> dict[str, Any]:  # noqa: ARG002, FBT001, FBT002  # Composer's signature
        """Where it stands."""
        return {"batches": self.batches}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on there, with what was kept then."""
        self.batches = state["batches"]
        updates = -(-self.batches // self.steps)
        for update in range(updates):
            self.keep(update)
        if self.batches % self.steps:  # in the middle of an update, whose requests are in the journal
            self.interval = self.requests.take(updates - 1)


def batch_of(served: Sequence[Served], positions: Positions) -> Batch:
    """Requests as one batch, padded on the right: `keep` marks the positions that are learned (CachedAnswers)."""
    states = [each.states(positions) for each in served]
    return {
        **collate([each.example(positions) for each in served]),
        PREFIX + "hidden": pad_sequence(states, batch_first=True),
    }


def count_tokens(batch: Mapping[str, Tensor]) -> dict[str, int]:
    """As distill.training.batches has it; a batch without a mistake counts as one, so no loss is divided by zero."""
    return {"total": int(batch["attention_mask"].sum()), "loss_generating": max(1, int(batch["keep"].sum()))}


def all_have(own: bool) -> bool:  # noqa: FBT001  # one question
    """Whether every process says yes."""
    answer = torch.tensor([int(own)], dtype=torch.int32)
    dist.all_reduce(answer, reduce_operation="MIN")
    return bool(answer.item())


def is_worse(new: Sequence[float], good: Sequence[float], *, level: float) -> bool:
    """Whether the alpha of a new draft is surely below that of an earlier one on the same requests.

    With 75 checks of 32 requests each at a level by which one of them errs in 5 % of runs, simulated
    (tests/distill/online/test_regression.py): a draft that is as good is rolled back in 4 % of runs where differences
    are normal, in 3 % where they have heavier tails, and in 10 % where most requests lose a little and a few gain much.
    A loss of one standard deviation of the differences is found by 95 % of checks, of half of one by 24 %; of half of
    one on 128 requests by 99 %.

    Args:
        new: alpha of the new draft, one for each request.
        good: alpha of the last good one, of the same requests.
        level: How often a single check may call a draft worse that is not.

    Returns:
        False too where there are so few requests that all of them could agree by accident.

    Raises:
        ValueError: If the numbers of requests differ, or a value is not finite.
    """
    if len(new) != len(good):
        raise ValueError(f"new and good must be of the same requests, got {len(new)} and {len(good)}")
    gain_R = np.asarray(new, dtype=np.float64) - np.asarray(good, dtype=np.float64)
    if not np.isfinite(gain_R).all():
        raise ValueError("every alpha must be finite")
    return len(gain_R) >= least_units(1 - 2 * level) and bool(are_below_zero(gain_R[np.newaxis], level)[0])


def are_below_zero(gain_CR: Array, level: float) -> NDArray[np.bool_]:
    """Of each check, whether the mean of its gains is below zero by Student's t and by Johnson's.

    Student's errs where gains are skewed to the right, Johnson's where they have heavy tails; either bounds the other.

    Source: Johnson 1978, "Modified t tests and confidence intervals for asymmetrical populations", Journal of the
    American Statistical Association 73, eq. 2.5.
    """
    num_requests = gain_CR.shape[1]
    mean_C, variance_C = gain_CR.mean(axis=1), gain_CR.var(axis=1, ddof=1)
    third_C = ((gain_CR - mean_C[:, np.newaxis]) ** 3).sum(axis=1)
    third_C *= num_requests / ((num_requests - 1) * (num_requests - 2))
    with np.errstate(divide="ignore", invalid="ignore"):
        shift_C = third_C / (6 * variance_C * num_requests) + third_C * mean_C**2 / (3 * variance_C**2)
        t_C = np.maximum(mean_C, mean_C + shift_C) / np.sqrt(variance_C / num_requests)
    constant_C = variance_C == 0
    return np.where(constant_C, mean_C < 0, t_C < -t_bound(num_requests, 1 - 2 * level))


@dataclass(frozen=True)
class Snapshot:
    """The trained weights of a draft and its optimiser's state after so many updates, on the CPU."""

    updates: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Any]

    @classmethod
    def of(cls, model: nn.Module, optimizer: Optimizer, *, updates: int) -> "Snapshot":
        """A copy."""
        weights = {name: weight.to("cpu", copy=True) for name, weight in trained_weights(model).items()}
        return cls(updates, weights, deepcopy(optimizer.state_dict()))

    def restore(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Put both back; the learning rate stays where its schedule has come to."""
        rates = [group["lr"] for group in optimizer.param_groups]
        put_back(model, self.weights)
        optimizer.load_state_dict(deepcopy(self.optimizer))
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


@dataclass
class Guard:
    """Rolls a draft back that has become worse than the last good one, or is not finite any more.

    Each request is a fair trial: it is served by a draft that has not learned from it, and the last good draft is
    replayed on the same response. After so many updates the differences are tested.

    Attributes:
        config: When they are compared, and how surely; None rolls back only what is not finite.
        draft: That learns.
        optimizer: That moves it.
        alpha: Acceptance rate of the draft as it is, along a response.
        served_by: alpha of the drafts that served, a request each, since the last good one.
        good_would: alpha of the good draft on the same.
    """

    config: GuardConfig | None
    draft: nn.Module
    optimizer: Optimizer
    alpha: Callable[[Served], float]
    served_by: list[float] = field(default_factory=list)
    good_would: list[float] = field(default_factory=list)
    good: Snapshot = field(init=False)

    def begin(self, updates: int) -> None:
        """The draft as it is counts as good."""
        self.good = Snapshot.of(self.draft, self.optimizer, updates=updates)

    def watch(self, interval: Sequence[tuple[Served, RequestRecord]]) -> None:
        """Compare on requests that were served by later drafts than the good one, before they are learned."""
        later = [(served, record) for served, record in interval if served.seen_by > self.good.updates]
        if self.config is None or not later:
            return
        newest = {name: weight.clone() for name, weight in trained_weights(self.draft).items()}
        put_back(self.draft, self.good.weights)
        self.good_would += [self.alpha(served) for served, _ in later]
        put_back(self.draft, newest)
        self.served_by += [record.alpha for _, record in later]

    def judge(self, updates: int) -> str | None:
        """Why the draft was rolled back after so many updates; None where it stays. The same on every process."""
        if not all(bool(torch.isfinite(weight).all()) for weight in trained_weights(self.draft).values()):
            self.roll_back()
            return "its weights are not finite"
        if self.config is None or updates % self.config.every:
            return None
        served_by, good_would = gathered(self.served_by), gathered(self.good_would)
        self.served_by, self.good_would = [], []
        if is_worse(served_by, good_would, level=self.config.level):
            self.roll_back()
            return f"alpha {np.mean(served_by):.3f} where the last good draft has {np.mean(good_would):.3f}"
        self.good = Snapshot.of(self.draft, self.optimizer, updates=updates)
        return None

    def roll_back(self) -> None:
        """The last good draft again, and its optimiser."""
        self.good.restore(self.draft, self.optimizer)
        self.served_by, self.good_would = [], []


def gathered(own: Sequence[Any]) -> list[Any]:
    """The values of all processes, in the order of their ranks."""
    return [value for each in dist.all_gather_object(list(own)) for value in each]


class Updates(Callback):
    """Judges the draft after every update, hands it to what serves, and logs how it did on the requests before.

    Args:
        feed: Of the requests.
        guard: That rolls drafts back.
        records: File of all processes' records, written by rank 0 as the training ends.
        checkpoints: Their directory.
    """

    def __init__(self, feed: RequestFeed, guard: Guard, *, records: Path, checkpoints: Path) -> None:
        self.feed = feed
        self.guard = guard
        self.records = records
        self.checkpoints = checkpoints
        self.taken_back = 0

    def fit_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        """The first requests are served by the draft as it begins, or goes on."""
        updates = state.timestamp.batch.value // self.feed.steps
        self.guard.begin(updates)
        self.feed.requests.publish(self.guard.draft, updates=updates)

    def batch_end(self, state: State, logger: Logger) -> None:
        """After the last step of an update."""
        updates, step = divmod(state.timestamp.batch.value, self.feed.steps)
        if step:
            return
        self.guard.watch(self.feed.interval)
        reason = self.guard.judge(updates)
        if reason is not None:
            self.taken_back += 1
            if dist.get_global_rank() == 0:
                good = self.guard.good.updates
                print(f"update {updates}: the draft is rolled back to that of update {good}: {reason}", file=sys.stderr)
        self.feed.requests.publish(self.guard.draft, updates=updates)
        logger.log_metrics(self.figures(updates))

    def figures(self, updates: int) -> dict[str, float]:
        """Of the requests that were served before the update, of all processes."""
        records: list[RequestRecord] = gathered([record for _, record in self.feed.interval])
        by_source: dict[str, list[float]] = defaultdict(list)
        for record in records:
            by_source[record.source].append(record.alpha)
        behind = [updates - 1 - record.updates for record in records]
        return {
            "online/alpha": sum(record.alpha for record in records) / len(records),
            **{f"online/alpha/{source}": sum(some) / len(some) for source, some in by_source.items()},
            "online/tau": sum(each.tokens for each in records) / sum(each.rounds for each in records),
            "online/requests": float(updates * self.feed.share.interval),
            "online/updates_behind": sum(behind) / len(behind),
            "online/taken_back": float(self.taken_back),
        }

    def batch_checkpoint(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        """Files of requests that no checkpoint would learn again are deleted."""
        newest = find_checkpoints(self.checkpoints)[-NEEDED_CHECKPOINTS:]
        if len(newest) < NEEDED_CHECKPOINTS:
            return
        behind = training_time(newest[0])[0] // self.feed.steps
        for update in [update for update in self.feed.evicted if update < behind]:
            self.feed.requests.journal.forget(self.feed.evicted.pop(update))

    def epoch_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        """A stream that ends before max_duration ends the training; the checkpoint of that is written next."""
        if self.feed.ended:
            state.stop_training()

    def fit_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        """One file of all records."""
        dist.barrier()
        if dist.get_global_rank() == 0:
            shares = [
                RequestShare(rank, self.feed.share.world, self.feed.share.interval)
                for rank in range(self.feed.share.world)
            ]
            merge_records([journal_of(self.records.parent, share) for share in shares], self.records)

    def close(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        """Nothing is served any more, also after an error."""
        self.feed.requests.close()


def journal_of(folder: Path, share: RequestShare) -> Journal:
    """The journal of one process, in <run>/online."""
    return Journal(folder / f"rank{share.rank}", share)


def online_of(run: Run) -> OnlineConfig:
    """The settings of a run that learns from requests."""
    online = run.recipe.distill.online
    assert online is not None, "a recipe in online mode has them"
    return online


def request_training(
    run: Run, model: DistillModel, optimizer: Optimizer, *, batch_size: int
) -> tuple[DataSpec, list[Callback], int | None]:
    """This process's batches, the callback that judges and publishes drafts, and the number of batches if known.

    Args:
        run: In online mode.
        model: The student, beside the head of its teacher.
        optimizer: Of the student.
        batch_size: Requests of a step on this process.

    Raises:
        UserError: If requests cannot be read or shared, or have no recorded responses where such are asked for.
    """
    online, recipe, world = online_of(run), run.recipe, dist.get_world_size()
    if online.update_interval % world:
        raise UserError(
            "distill.online.update_interval must be a multiple of the number of processes, got "
            f"{online.update_interval} and {world}. Change one of the two."
        )
    journal = journal_of(run.folder / FOLDER, RequestShare(dist.get_global_rank(), world, online.update_interval))
    journal.folder.mkdir(parents=True, exist_ok=True)

    # The student's acceptance along responses: by it recorded requests are replayed and drafts judged.
    assert isinstance(model.teacher, CachedTeacher), "in online mode the teacher's states come with the requests"
    sampling = Sampling(recipe.data.temperature, top_p=recipe.data.top_p)
    asker = Asker(model.student.lm, model.teacher.head, model.vocab_size, sampling)

    # Requests: recorded and replayed, or answered in a process of their own.
    if online.answers == "recorded":
        recorded = recorded_stream(run)
        requests = RecordedRequests(recorded, asker, journal, online.lookahead, recipe.seed)
        num_updates = len(recorded) // online.update_interval
    else:
        own = journal.folder / RECIPE_NAME  # that of the run may be of another command, with other overrides
        save_recipe(recipe, own)
        requests = LiveRequests(own, journal, yields=not (online.waits or torch.cuda.is_available()))
        num_updates = known_updates(run)

    buffer = Buffer(online.buffer_size, online.eviction, recipe.seed)
    feed = RequestFeed(
        requests, buffer, positions=online.positions, steps=online.steps_per_update, batch_size=batch_size
    )
    guard = Guard(online.guard, model.student.lm, optimizer, asker.alpha)
    updates = Updates(feed, guard, records=run.folder / FOLDER / RECORDS, checkpoints=run.checkpoints.path)
    data = DataSpec(
        DataLoader(feed, batch_size=None),
        split_batch=split_batch,  # pyright: ignore[reportArgumentType]  # as in distill/training/batches.py
        microbatch_transforms=Widths.of(recipe).fit,
        get_num_tokens_in_batch=count_tokens,  # pyright: ignore[reportArgumentType]
    )
    return data, [updates], None if num_updates is None else num_updates * online.steps_per_update


def known_updates(run: Run) -> int | None:
    """How many updates a live stream makes; None where its number of requests is not known."""
    stream = online_of(run).stream
    known = None if stream.follow else stream.num_requests
    if known is None and not stream.follow and all(source.path for source in stream.sources):
        known = sum(1 for _ in open_stream(stream, seed=run.recipe.seed))
    return None if known is None else known // online_of(run).update_interval


def stream_in_batches(max_duration: str, num_batches: int | None) -> str:
    """The length of a training on a stream, in batches.

    Raises:
        UserError: If that is the whole stream, whose length is not known, or it ends before the first update.
    """
    if not max_duration.endswith("ep"):
        return max_duration
    if num_batches is None:
        raise UserError(
            f"distill.max_duration is {max_duration}, and the number of requests of distill.online.stream is not "
            "known. Set distill.max_duration in ba, which counts optimiser steps, or stream.num_requests."
        )
    if not num_batches:
        raise UserError(
            "distill.online.stream: ends before distill.online.update_interval requests. Give more requests, or update "
            "after fewer."
        )
    return f"{num_batches}ba"
