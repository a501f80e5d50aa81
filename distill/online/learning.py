"""Training on the requests that a draft serves: batches, guard, and comparison with static drafts.

Shape suffixes used in this file:
    B = sequences in the batch, T = tokens per sequence; C = checks, R = requests
"""

import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from composer import Callback, DataSpec, Logger, State
from composer.utils import dist
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from architectures.console import track
from architectures.errors import UserError
from architectures.manifest import fingerprint_checkpoint
from distill.checkpoints.checkpoint_files import find_checkpoints, training_time
from distill.chunked_loss import vocab_size_of
from distill.data.batches import collate
from distill.model import DistillModel
from distill.online import serving
from distill.recipe.recipe import save_recipe
from distill.recipe.sections import OnlineConfig, teacher_dtype
from distill.response_batches import padding_for, split_batch
from distill.run import RECIPE_NAME, Run
from distill.stage_inputs import stream_baselines
from distill.teacher import CachedTeacher
from distill.teacher_cache import PREFIX, load_head
from eval.intervals import (
    CONFIDENCE,
    NUM_RESAMPLES,
    Array,
    Columns,
    Resampling,
    least_units,
    paired_ratio_difference,
    pooled_ratio,
    t_bound,
)
from eval.models import default_device, load_model, require_same_tokenizer
from eval.scorecard_schema import StreamRow
from eval.stream import open_stream

FOLDER, RECORDS = "online", "records.jsonl"  # in the run directory
NEEDED_CHECKPOINTS = 2  # the newest, and the one used if it is damaged
BUFFER_SIZE = 256  # newest requests of each process, used to fill up batches
GUARD_INTERVAL = 4  # updates between two tests of the draft against the last good one
GUARD_LEVEL = 0.001  # probability that one test rolls back a draft that is equally good
COMPARED_SHARE = 0.25  # of each source's requests, the last ones
Batch = dict[str, Tensor]


@dataclass(eq=False)
class RequestFeed(IterableDataset[Batch]):
    """One batch per optimiser step; requests are served when the first batch of the next update is requested.

    A batch has all new requests, filled up with older ones from the newest BUFFER_SIZE. The feed ends with the last
    whole interval of the stream, on all processes at once. Checkpoints hold its position.

    Args:
        seed: Of the draws of old requests.
        batch_size: Requests per step on this process.
    """

    requests: serving.RecordedRequests | serving.LiveRequests
    online: OnlineConfig
    seed: int
    batch_size: int
    batches: int = 0  # yielded since training began
    interval: list[serving.Served] = field(default_factory=list)  # requests of the current update
    ended: bool = False

    def __post_init__(self) -> None:
        self.journal, self.steps = self.requests.journal, self.online.steps_per_update

    def __iter__(self) -> Iterator[Batch]:
        while True:
            update, step = divmod(self.batches, self.steps)
            if step == 0 or not self.interval:
                self.interval = self.requests.take(update)
                is_whole = int(len(self.interval) == self.journal.own)
                whole = torch.tensor([is_whole], dtype=torch.int32, device=default_device())  # NCCL takes no CPU tensor
                dist.all_reduce(whole, reduce_operation="MIN")
                if not whole.item():
                    self.ended = True
                    if not self.batches:
                        raise UserError(TOO_SHORT)
                    return
            old = self.draw_old(update)
            self.batches += 1
            yield batch_of([*self.interval, *self.journal.read(old)])

    def first_kept(self, updates: int) -> int:
        """Return the oldest request in the buffer after some updates, as an index among this process's requests."""
        return max(0, updates * self.journal.own - BUFFER_SIZE)

    def draw_old(self, update: int) -> list[int]:
        """Return old requests that fill up this step's batch; fewer if the buffer has no more."""
        old = [self.journal.request(index) for index in range(self.first_kept(update + 1), update * self.journal.own)]
        count = min(max(0, self.batch_size - self.journal.own), len(old))
        if not count:
            return []
        drawn = np.random.default_rng([self.seed, self.batches, 1]).choice(len(old), count, replace=False)
        return [old[int(index)] for index in sorted(drawn)]

    def state_dict(self, num_samples: int | None = None, from_beginning: bool = True) -> dict[str, Any]:  # noqa: ARG002, FBT001, FBT002  # Composer's signature
        return {"batches": self.batches}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume; the requests of an unfinished update are in the journal."""
        self.batches = state["batches"]
        update, step = divmod(self.batches, self.steps)
        if step:
            self.interval = self.requests.take(update)


TOO_SHORT = (
    "distill.online.stream: ends before distill.online.update_interval requests. Add requests, or lower "
    "distill.online.update_interval."
)


def batch_of(served: Sequence[serving.Served]) -> Batch:
    """Collate requests, right-padded, with hidden states as in CachedResponses."""
    states = [each.hidden_AH for each in served]
    return {**collate([each.example for each in served]), PREFIX + "hidden": pad_sequence(states, batch_first=True)}


def count_tokens(batch: Mapping[str, Tensor]) -> dict[str, int]:
    """Count tokens as distill.response_batches does, but at least one trained token, so no loss is divided by zero."""
    return {"total": int(batch["attention_mask"].sum()), "loss_generating": max(1, int(batch["keep"].sum()))}


def is_worse(new: Sequence[float], good: Sequence[float], *, level: float = GUARD_LEVEL) -> bool:
    """Return True if the alpha of a new draft is significantly below that of an earlier one on the same requests.

    Error rates and power: docs/online.md, simulated in tests/distill/online/test_guard.py. False if there are so few
    requests that all of them could agree by accident.

    Args:
        new: alpha of the new draft, one per request.
        good: alpha of the last good one on the same requests.
        level: Probability that a single test rejects a draft that is not worse.
    """
    gain_R = np.asarray(new, dtype=np.float64) - np.asarray(good, dtype=np.float64)
    return len(gain_R) >= least_units(1 - 2 * level) and bool(are_below_zero(gain_R[np.newaxis], level)[0])


def are_below_zero(gain_CR: Array, level: float) -> NDArray[np.bool_]:
    """Test, per check, whether the mean gain is below zero by both Student's t and Johnson's.

    Student's errs if gains are skewed to the right, Johnson's if they have heavy tails; each bounds the other.

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
    return np.where(constant_C, mean_C < 0, t_C < -t_bound(num_requests - 1, 1 - 2 * level))


class Guard:
    """Rolls back a draft that has become worse than the last good one, or is no longer finite.

    Each request is a fair trial: it is served by a draft that has not been trained on it, and the last good draft is
    replayed on the same response. The differences are tested every GUARD_INTERVAL updates.
    """

    def __init__(self, replay: serving.DraftReplay, optimizer: Optimizer) -> None:
        self.replay = replay
        self.draft = replay.draft
        self.optimizer = optimizer
        self.served_by: list[float] = []  # alpha per request since the last good draft, of the drafts that served
        self.good_would: list[float] = []  # alpha of the last good draft on the same requests

    def begin(self, updates: int) -> None:
        """Save the draft as the last good one: its trained weights and optimiser state, on the CPU."""
        self.good_updates = updates
        self.good_weights = {
            name: weight.to("cpu", copy=True) for name, weight in serving.trained_weights(self.draft).items()
        }
        self.good_optimizer = deepcopy(self.optimizer.state_dict())

    def watch(self, interval: Sequence[serving.Served]) -> None:
        """Replay the good draft on requests that later drafts served, before they are trained on."""
        later = [served for served in interval if served.record.updates > self.good_updates]
        if not later:
            return
        newest = {name: weight.clone() for name, weight in serving.trained_weights(self.draft).items()}
        serving.restore_weights(self.draft, self.good_weights)
        self.good_would += [self.replay.alpha(each.recorded) for each in later]
        serving.restore_weights(self.draft, newest)
        self.served_by += [served.record.alpha for served in later]

    def judge(self, updates: int) -> str | None:
        """Return why the draft was rolled back after some updates, or None; the same on every process."""
        if not all(bool(torch.isfinite(weight).all()) for weight in serving.trained_weights(self.draft).values()):
            self.roll_back()
            return "its weights are not finite"
        if updates % GUARD_INTERVAL:
            return None
        served_by, good_would = gathered(self.served_by), gathered(self.good_would)
        self.served_by, self.good_would = [], []
        if is_worse(served_by, good_would):
            self.roll_back()
            return f"alpha {np.mean(served_by):.3f}, the last good draft's is {np.mean(good_would):.3f}"
        self.begin(updates)
        return None

    def roll_back(self) -> None:
        """Restore the last good draft and its optimiser; keep the current learning rate of the schedule."""
        rates = [group["lr"] for group in self.optimizer.param_groups]
        serving.restore_weights(self.draft, self.good_weights)
        self.optimizer.load_state_dict(deepcopy(self.good_optimizer))
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self.served_by, self.good_would = [], []


def gathered(own: Sequence[Any]) -> list[Any]:
    """Return the values of all processes, in rank order."""
    return [value for each in dist.all_gather_object(list(own)) for value in each]


class Updates(Callback):
    """Tests the draft after every update, publishes it to the server, and logs its acceptance on the requests before.

    At the end rank 0 writes all processes' records into `folder`, <run>/online.
    """

    def __init__(self, feed: RequestFeed, guard: Guard, *, folder: Path, checkpoints: Path) -> None:
        self.feed = feed
        self.guard = guard
        self.folder = folder
        self.checkpoints = checkpoints
        self.rollbacks = 0

    def fit_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        updates = state.timestamp.batch.value // self.feed.steps
        self.guard.begin(updates)
        self.feed.requests.publish(self.guard.draft, updates=updates)

    def batch_end(self, state: State, logger: Logger) -> None:
        updates, step = divmod(state.timestamp.batch.value, self.feed.steps)
        if step:
            return
        self.guard.watch(self.feed.interval)
        reason = self.guard.judge(updates)
        if reason is not None:
            self.rollbacks += 1
            if dist.get_global_rank() == 0:
                good = self.guard.good_updates
                print(f"update {updates}: the draft is rolled back to update {good}: {reason}", file=sys.stderr)
        self.feed.requests.publish(self.guard.draft, updates=updates)

        # Requests of all processes that were served before the update.
        records: list[serving.RequestRecord] = gathered([served.record for served in self.feed.interval])
        by_source: dict[str, list[float]] = defaultdict(list)
        for record in records:
            by_source[record.source].append(record.alpha)
        behind = [updates - 1 - record.updates for record in records]
        logger.log_metrics(
            {
                "online/alpha": sum(record.alpha for record in records) / len(records),
                **{f"online/alpha/{source}": sum(some) / len(some) for source, some in by_source.items()},
                "online/tau": sum(each.tokens for each in records) / sum(each.steps for each in records),
                "online/requests": float(updates * self.feed.journal.interval),
                "online/updates_behind": sum(behind) / len(behind),
                "online/taken_back": float(self.rollbacks),
            }
        )

    def batch_checkpoint(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        """Delete the files of requests that no checkpoint would train on again, unless baselines will replay them."""
        newest = find_checkpoints(self.checkpoints)[-NEEDED_CHECKPOINTS:]
        if len(newest) == NEEDED_CHECKPOINTS and not self.feed.online.baselines:
            updates = training_time(newest[0])[0] // self.feed.steps
            self.feed.journal.forget(self.feed.journal.request(self.feed.first_kept(updates)))

    def epoch_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        """Stop training if the stream ends before max_duration; its checkpoint is written next."""
        if self.feed.ended:
            state.stop_training()

    def fit_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        """Merge the records of all processes into one file, in the order of the stream."""
        dist.barrier()
        if dist.get_global_rank() == 0:
            files = [self.folder / f"rank{rank}" / RECORDS for rank in range(self.feed.journal.world)]
            records = [record for file in files for record in serving.read_records(file)]
            serving.write_records(sorted(records, key=lambda record: record.request), self.folder / RECORDS)

    def close(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        self.feed.requests.close()


def request_training(
    run: Run, model: DistillModel, optimizer: Optimizer, *, batch_size: int
) -> tuple[DataSpec, list[Callback], str]:
    """Return this process's batches, the callback that tests and publishes drafts, and max_duration in batches.

    Raises:
        UserError: If requests cannot be read or shared, have no recorded responses, or their number is not known.
    """
    online, recipe, world = serving.online_of(run), run.recipe, dist.get_world_size()
    if online.update_interval % world:
        raise UserError(
            "distill.online.update_interval must be a multiple of the number of processes, got "
            f"{online.update_interval} and {world}. Change one of the two."
        )
    if online.stream is None and (world > 1 or serving.SERVER_VARIABLE not in os.environ):
        raise UserError(
            f"distill.online.stream: null, so requests come over HTTP, but `widedraft serve` did not start this, or it "
            f"trains in {world} processes. Run `widedraft serve RECIPE` with one visible GPU at most, or set a stream."
        )
    folder, rank = run.folder / FOLDER, dist.get_global_rank()
    journal = serving.Journal(folder / f"rank{rank}", rank, world, online.update_interval)
    journal.folder.mkdir(parents=True, exist_ok=True)

    # Replays of the student serve recorded requests and test drafts.
    assert isinstance(model.teacher, CachedTeacher), "in online mode the teacher's states come with the requests"
    replay = serving.DraftReplay(
        model.student.lm, model.teacher.head, model.vocab_size, online.num_speculative_tokens, recipe.seed
    )

    # Requests are recorded and replayed, or served in a separate process.
    recorded = serving.recorded_stream(run) if online.responses == "recorded" else None
    if recorded is not None:
        requests = serving.RecordedRequests(recorded, replay, journal)
    else:
        own = journal.folder / RECIPE_NAME  # the run's recipe file may be of another command, with other overrides
        save_recipe(recipe, own)
        module = "distill.online.serving" if online.stream is not None else "distill.online.http_serving"
        requests = serving.LiveRequests(own, journal, module)

    # Train on the whole stream, unless max_duration is in batches.
    max_duration = recipe.distill.max_duration
    if max_duration.endswith("ep"):
        if online.stream is None or online.stream.follow:
            raise UserError(
                f"distill.max_duration is {max_duration}, but the number of requests over HTTP or in a followed file "
                "is unknown. Set distill.max_duration in ba, which counts optimiser steps."
            )
        count = sum(1 for _ in open_stream(online.stream, seed=recipe.seed)) if recorded is None else len(recorded)
        max_duration = f"{count // online.update_interval * online.steps_per_update}ba"
        if count < online.update_interval:
            raise UserError(TOO_SHORT)

    feed = RequestFeed(requests, online, seed=recipe.seed, batch_size=batch_size)
    guard = Guard(replay, optimizer)
    data = DataSpec(
        DataLoader(feed, batch_size=None),
        split_batch=split_batch,  # pyright: ignore[reportArgumentType]  # as in distill/response_batches.py
        microbatch_transforms=padding_for(recipe),
        get_num_tokens_in_batch=count_tokens,  # pyright: ignore[reportArgumentType]
    )
    return data, [Updates(feed, guard, folder=folder, checkpoints=run.checkpoints.path)], max_duration


def compare_on_stream(run: Run) -> tuple[StreamRow, ...]:
    """Replay the requests with static drafts; return acceptance of all of them and of the online draft.

    Their records are kept in <run>/online: a second call recomputes only those of newer drafts.

    Raises:
        UserError: If a baseline has another tokenizer, or the online draft has served nothing yet.
    """
    folder = run.folder / FOLDER
    learned = list(serving.read_records(folder / RECORDS))
    if not learned:
        raise UserError(f"{folder / RECORDS}: contains no requests. Train the online draft first (widedraft distill).")
    by_draft = {}
    for name, draft in stream_baselines(run).items():
        require_same_tokenizer(run.target, draft)
        records_file = folder / f"baseline-{fingerprint_checkpoint(draft)[:12]}.jsonl"
        if not records_file.is_file() or records_file.stat().st_mtime_ns < (folder / RECORDS).stat().st_mtime_ns:
            serving.write_records([served.record for served in serve_again(run, draft)], records_file)
        by_draft[name] = list(serving.read_records(records_file))
    return comparison({**by_draft, "online": learned}, Resampling(CONFIDENCE, NUM_RESAMPLES, run.recipe.seed))


def serve_again(run: Run, draft: Path) -> Iterator[serving.Served]:
    """Yield the requests of the run, replayed with a static draft: recorded ones, or those served and kept."""
    recipe, online, device = run.recipe, serving.online_of(run), default_device()
    if online.responses == "live":
        files = sorted((run.folder / FOLDER).glob("rank*/requests/*"), key=lambda path: path.name)
        requests, count = (serving.read_served(path).recorded for path in files), len(files)
        head_dtype = dtype = recipe.target.dtype
    else:
        requests, count = (recorded := serving.recorded_stream(run)), len(recorded)
        head_dtype, dtype = teacher_dtype(recipe.target.dtype, recipe.distill.precision), "float32"
    head, model = load_head(run.target, dtype=head_dtype, device=device), load_model(draft, dtype=dtype, device=device)
    vocab_size = min(head.vocab_size, vocab_size_of(model))
    replay = serving.DraftReplay(model, head, vocab_size, online.num_speculative_tokens, recipe.seed)
    for each in track(requests, description="requests", total=count):
        yield replay.serve(each, updates=0)


def comparison(
    by_draft: Mapping[str, Sequence[serving.RequestRecord]], resampling: Resampling
) -> tuple[StreamRow, ...]:
    """Return a row per source and draft: alpha and tau over the last requests, and gains over the first draft.

    Only requests that all drafts served are compared, paired in resampling.
    """
    shared = set.intersection(*({record.request for record in records} for records in by_draft.values()))
    first, *_ = by_draft
    rows = []
    for source in dict.fromkeys(record.source for records in by_draft.values() for record in records):
        last: dict[str, Sequence[serving.RequestRecord]] = {}
        for name, records in by_draft.items():
            own = [each for each in records if each.source == source and each.request in shared]
            last[name] = own[-max(1, round(COMPARED_SHARE * len(own))) :]
        for name, records in last.items():
            if not records:
                continue
            alpha, tau = alpha_columns(records), tau_columns(records)
            gains = (
                {}
                if name == first
                else {
                    "alpha_gain": paired_ratio_difference(alpha, alpha_columns(last[first]), resampling),
                    "tau_gain": paired_ratio_difference(tau, tau_columns(last[first]), resampling),
                }
            )
            rows.append(
                StreamRow(
                    source=source,
                    draft=name,
                    requests=len(records),
                    alpha=pooled_ratio(*alpha, resampling),
                    tau=pooled_ratio(*tau, resampling),
                    **gains,
                )
            )
    return tuple(rows)


def alpha_columns(records: Sequence[serving.RequestRecord]) -> Columns:
    return [each.alpha * each.tokens for each in records], [float(each.tokens) for each in records]


def tau_columns(records: Sequence[serving.RequestRecord]) -> Columns:
    return [float(each.tokens) for each in records], [float(each.steps) for each in records]
