"""Answered requests on disk: <run>/online/rank0/requests/00000012.safetensors and rank0/records.jsonl.

A request's line is written before its file, and its file is whole or absent: a request counts as served once its file
is there, and lines behind the last such file are of requests that were in flight when the process was killed.

Shape suffixes used in this file:
    A = tokens of the response, H = width of the target's last hidden state
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from architectures.errors import UserError
from architectures.files.atomic import write_bytes, write_text
from architectures.files.reading import parsed
from distill.data.batches import Example

Positions = Literal["rejected", "all"]
SCHEMA = "widedraft.requests/2"
FIX = "Delete the run's directory `online`, and train again from its last checkpoint."


@dataclass(frozen=True, kw_only=True)
class RequestRecord:
    """How a draft did on one request: a line of records.jsonl.

    Attributes:
        request: Its place in the stream, from 0.
        source: The set it belongs to: a data set, a language, a topic.
        updates: Updates that the draft which served it had had.
        alpha: Mean acceptance rate of this draft over all tokens of the response.
        tau: Acceptance length: `tokens` over `rounds`.
        tokens: Of the response.
        rounds: Verification steps.
        proposed: Drafted tokens.
        accepted: Of those.
        seconds: From the request to its last token; null where responses are replayed.
        wait_s: Of those, before its first verification step; null where responses are replayed.
        answer_ids: The response.
    """

    request: int
    source: str
    updates: int
    alpha: float
    tau: float
    tokens: int
    rounds: int
    proposed: int
    accepted: int
    seconds: float | None
    wait_s: float | None
    answer_ids: tuple[int, ...]


RECORD = TypeAdapter(RequestRecord)


@dataclass(frozen=True)
class Served:
    """A response of the target as an update learns from it.

    Attributes:
        request: Its place in the stream.
        source: The set it belongs to.
        prompt_ids: The prompt.
        answer_ids: The response.
        mistakes: Places in the response of tokens in whose place another one was drafted. The bonus token of a fully
            accepted verification step is none: nothing was drafted there.
        hidden_AH: The input of the target's head behind each token of the response.
        seen_by: Updates that the draft which served it had had.
    """

    request: int
    source: str
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    mistakes: tuple[int, ...]
    hidden_AH: Tensor
    seen_by: int

    def places(self, positions: Positions) -> Sequence[int]:
        """Places in the response that are learned."""
        return self.mistakes if positions == "rejected" else range(len(self.answer_ids))

    def example(self, positions: Positions) -> Example:
        """As a sequence to train on: token i of the response is predicted where the token before it stands."""
        *input_ids, last_id = (*self.prompt_ids, *self.answer_ids)
        before = len(self.prompt_ids) - 1
        spans = tuple((before + place, before + place + 1) for place in self.places(positions))
        return Example(tuple(input_ids), last_id, spans, begins=len(self.prompt_ids))

    def states(self, positions: Positions) -> Tensor:
        """The hidden state for each position that is learned."""
        return self.hidden_AH[list(self.places(positions))]


def write_served(served: Served, path: Path) -> None:
    """Write it to a file, whole or not at all."""
    names = ("prompt_ids", "answer_ids", "mistakes")
    tensors = {name: torch.tensor(getattr(served, name), dtype=torch.int64) for name in names}
    metadata = {"request": str(served.request), "source": served.source, "seen_by": str(served.seen_by)}
    write_bytes(save({**tensors, "hidden": served.hidden_AH.contiguous()}, metadata=metadata), path)


def read_served(path: Path) -> Served:
    """Read it back; raises UserError if the file is missing or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            ids = {name: tuple(file.get_tensor(name).tolist()) for name in ("prompt_ids", "answer_ids", "mistakes")}
            request, seen_by = int(metadata["request"]), int(metadata["seen_by"])
            hidden_AH = file.get_tensor("hidden")
            return Served(request=request, source=metadata["source"], seen_by=seen_by, hidden_AH=hidden_AH, **ids)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise UserError(f"{path}: damaged ({error}). {FIX}") from error


@dataclass(frozen=True)
class RequestShare:
    """Which requests of a stream one of several processes serves, and which of them an update learns.

    Attributes:
        rank: Of the process.
        world: Number of processes.
        interval: Requests between two updates, over all of them.
    """

    rank: int
    world: int
    interval: int

    @property
    def own(self) -> int:
        """Requests of this process between two updates."""
        return self.interval // self.world

    def request(self, index: int) -> int:
        """The place in the stream of one of its requests, which count from 0."""
        return self.rank + self.world * index

    def index(self, request: int) -> int:
        """Which of its requests has a place in the stream."""
        return (request - self.rank) // self.world

    def of_update(self, update: int) -> list[int]:
        """The requests that an update learns, counting updates from 0."""
        return [self.request(index) for index in range(update * self.own, (update + 1) * self.own)]


@dataclass(frozen=True)
class Journal:
    """The served requests of one process, in a directory of its own."""

    folder: Path
    share: RequestShare

    @property
    def records_file(self) -> Path:
        return self.folder / "records.jsonl"

    def path(self, request: int) -> Path:
        """The file of a request."""
        return self.folder / "requests" / f"{request:08d}.safetensors"

    def num_served(self) -> int:
        """Number of whole requests: those up to the newest file."""
        newest = max((int(path.stem) for path in self.folder.glob("requests/*.safetensors")), default=None)
        return 0 if newest is None else self.share.index(newest) + 1

    def begin(self) -> int:
        """Create the journal, or drop the lines of requests that were in flight; returns how many are served.

        Raises:
            UserError: If a line of a served request is missing or damaged.
        """
        served = self.num_served()
        kept = [record for record in self.records() if record.request < self.share.request(served)]
        if [record.request for record in kept] != [self.share.request(index) for index in range(served)]:
            raise UserError(f"{self.records_file}: must have one line for each of {served} served requests. {FIX}")
        write_records(kept, self.records_file)
        return served

    def records(self, first: int = 0, count: int | None = None) -> Iterator[RequestRecord]:
        """`count` lines from index `first`; a last line that was cut off while it was written is left out."""
        return islice(read_records(self.records_file, first), count)

    def write(self, served: Served, record: RequestRecord) -> None:
        """Note a request that is answered."""
        with self.records_file.open("a", encoding="utf-8") as file:
            file.write(line_of(record))
        write_served(served, self.path(served.request))

    def read(self, requests: Sequence[int]) -> list[Served]:
        """Served requests by their places in the stream."""
        return [read_served(self.path(request)) for request in requests]

    def read_with_records(self, requests: Sequence[int]) -> list[tuple[Served, RequestRecord]]:
        """Served requests, one after the other in the stream, with their lines."""
        first = self.share.index(requests[0]) if requests else 0
        return list(zip(self.read(requests), self.records(first, len(requests)), strict=True))

    def forget(self, requests: Iterable[int]) -> None:
        """Delete the files of requests that nothing will learn any more; the newest marks how far serving came."""
        newest = self.share.request(self.num_served() - 1)
        for request in requests:
            if request != newest:
                self.path(request).unlink(missing_ok=True)


def line_of(record: RequestRecord) -> str:
    return json.dumps(asdict(record), ensure_ascii=False) + "\n"


def write_records(records: Iterable[RequestRecord], path: Path) -> None:
    """A file of records, whole or not at all; its first line holds the schema."""
    write_text("".join([json.dumps({"schema": SCHEMA}) + "\n", *map(line_of, records)]), path)


def read_records(path: Path, first: int = 0) -> Iterator[RequestRecord]:
    """The records of a file from one on; none where it is not there. Raises UserError of a damaged line."""
    if path.is_file():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        for number, line in enumerate(lines[1 + first :], start=2 + first):
            if line.endswith("\n"):
                yield parsed(RECORD, line, f"{path}:{number}", FIX)


def merge_records(journals: Sequence[Journal], path: Path) -> None:
    """One file of the records of all processes, in the order of the stream."""
    records = (record for journal in journals for record in journal.records())
    write_records(sorted(records, key=lambda record: record.request), path)
