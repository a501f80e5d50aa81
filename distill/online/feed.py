"""Batches of what served requests teach, for Composer's trainer.

Shape suffixes used in this file:
    B = sequences in the batch, T = tokens per sequence

A batch is that of distill/teacher_cache/answers.py: `keep` marks the positions that count, `teacher_hidden` holds what
the target knew there.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from composer.utils import dist
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import IterableDataset

from architectures.errors import UserError
from distill.data.batches import collate
from distill.online.buffer import Buffer
from distill.requests.arrivals import Requests
from distill.requests.served import Positions, Served
from distill.teacher_cache.answers import PREFIX
from eval.records.request import RequestRecord

Batch = dict[str, Tensor]
Interval = list[tuple[Served, RequestRecord]]


class RequestFeed(IterableDataset[Batch]):
    """One batch for each optimiser step; the requests before an update are served while its first batch is waited for.

    It ends with the last whole interval of the stream, on all processes at once. Its position is in checkpoints.

    Args:
        requests: Of this process.
        buffer: What of them is kept.
        positions: What is learned of an answer.
        steps: Optimiser steps of an update.
        batch_size: Requests of a step on this process.
    """

    def __init__(
        self, requests: Requests, buffer: Buffer, *, positions: Positions, steps: int, batch_size: int
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

    def __iter__(self) -> Iterator[Batch]:
        """Batches from where the training stands."""
        while True:
            update, step = divmod(self.batches, self.steps)
            if step == 0 or not self.interval:
                self.interval = self.requests.take(update)
                if not all_have(len(self.interval) == self.requests.journal.share.own):
                    self.end()
                    return
                self.keep(update)
            yield self.next_batch(update)

    def end(self) -> None:
        """The stream is at its end.

        Raises:
            UserError: If nothing was learned of it.
        """
        self.ended = True
        interval = self.requests.journal.share.interval
        if not self.batches:
            raise UserError(
                f"distill.online.stream: ends before distill.online.update_interval={interval} requests. Give more "
                "requests, or update after fewer."
            )

    def keep(self, update: int) -> None:
        """Take the interval into the buffer."""
        self.buffer.add(self.requests.journal.share.of_update(update))
        self.evicted[update] = self.buffer.evicted

    def next_batch(self, update: int) -> Batch:
        """What the next step learns."""
        new = self.requests.journal.share.of_update(update)
        chosen = self.buffer.batch(new, size=self.batch_size, step=self.batches)
        served = [each for each, _ in self.interval] + self.requests.journal.read(chosen[len(new) :])
        self.batches += 1
        return batch_of(served, self.positions)

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
    """Requests as one batch, padded on the right; B may be any number from one."""
    states = [each.states(positions) for each in served]
    return {
        **collate([each.example(positions) for each in served]),
        PREFIX + "hidden": pad_sequence(states, batch_first=True),
    }


def count_tokens(batch: Mapping[str, Tensor]) -> dict[str, int]:
    """As distill.training.dataspec has it; a batch without a mistake counts as one, for no loss is divided by none."""
    return {"total": int(batch["attention_mask"].sum()), "loss_generating": max(1, int(batch["keep"].sum()))}


def all_have(own: bool) -> bool:  # noqa: FBT001  # one question
    """Whether every process says yes."""
    answer = torch.tensor([int(own)], dtype=torch.int32)
    dist.all_reduce(answer, reduce_operation="MIN")
    return bool(answer.item())
