"""Where a training on requests gets them: answered live in a process beside it, or recorded and replayed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import nn

from distill.requests.chances import Asker
from distill.requests.journal import Journal
from distill.requests.recorded import Recorded, replayed
from distill.requests.served import Served
from eval.records.request import RequestRecord


class Requests(Protocol):
    """Served requests, an interval after the other."""

    journal: Journal

    def take(self, update: int) -> list[tuple[Served, RequestRecord]]:
        """What this process served since the update before: less than an interval where the stream has ended."""
        ...

    def publish(self, model: nn.Module, *, updates: int) -> None:
        """From now on requests are served by this draft, which has had so many updates."""
        ...

    def close(self) -> None:
        """Serve nothing more."""
        ...


@dataclass
class RecordedRequests:
    """Recorded answers in the order of a stream, replayed with the draft that learns.

    Attributes:
        recorded: In the order of the stream.
        asker: Of the draft.
        journal: Of this process.
        lookahead: Tokens a round proposes.
        seed: Of the training.
        served: Requests that are in the journal.
        updates: That the draft has had.
    """

    recorded: Sequence[Recorded]
    asker: Asker
    journal: Journal
    lookahead: int
    seed: int
    served: int = field(init=False)
    updates: int = 0

    def __post_init__(self) -> None:
        self.served = self.journal.begin()

    def take(self, update: int) -> list[tuple[Served, RequestRecord]]:
        """See Requests."""
        share = self.journal.share
        wanted = [request for request in share.of_update(update) if request < len(self.recorded)]
        for index in range(self.served, update * share.own + len(wanted)):
            self.journal.write(*self.replay(self.recorded[share.request(index)]))
            self.served += 1
        return with_records(self.journal, wanted)

    def replay(self, recorded: Recorded) -> tuple[Served, RequestRecord]:
        """What the draft of the moment would have done."""
        chances = self.asker.chances(recorded.prompt_ids, recorded.answer_ids, recorded.hidden_AH)
        return replayed(recorded, chances, lookahead=self.lookahead, seed=self.seed, updates=self.updates)

    def publish(self, model: nn.Module, *, updates: int) -> None:  # noqa: ARG002  # the asker has the model itself
        """See Requests."""
        self.updates = updates

    def close(self) -> None:
        """See Requests."""


def with_records(journal: Journal, wanted: Sequence[int]) -> list[tuple[Served, RequestRecord]]:
    """Served requests, one after the other, with their lines: those before them are not read again."""
    first = journal.share.index(wanted[0]) if wanted else 0
    lines = [record for record in journal.records(first, len(wanted)) if record.request in wanted]
    return list(zip(journal.read(wanted), lines, strict=True))
