"""What one process has served, on the disk: <run>/online/rank0/requests/00000012.safetensors and rank0/records.jsonl.

A request's line is written before its file, and its file is whole or absent: a request counts as served once its file
is there, and lines behind the last such file are of requests that were in flight when the process was killed.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pydantic import TypeAdapter

from architectures.errors import UserError
from architectures.files.atomic import write_text
from architectures.files.typed_file import parsed
from distill.requests.served import Served, read_served, write_served
from eval.records.request import SCHEMA, RequestRecord

HEADER = json.dumps({"schema": SCHEMA}) + "\n"
LINE = TypeAdapter(RequestRecord)
REMEDY = "Delete the run's folder `online`, and train again from its last checkpoint."


@dataclass(frozen=True)
class Share:
    """Which requests of a stream one of several processes serves, and which of them an update learns.

    Attributes:
        rank: Of the process.
        world: How many there are.
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
        """What the update learns that comes after so many others."""
        return [self.request(index) for index in range(update * self.own, (update + 1) * self.own)]


@dataclass(frozen=True)
class Journal:
    """The served requests of one process."""

    folder: Path
    share: Share

    @property
    def records_file(self) -> Path:
        return self.folder / "records.jsonl"

    def path(self, request: int) -> Path:
        """Where a request's file is."""
        return self.folder / "requests" / f"{request:08d}.safetensors"

    def num_served(self) -> int:
        """How many requests are whole: those before the newest file."""
        newest = max((int(path.stem) for path in self.folder.glob("requests/*.safetensors")), default=None)
        return 0 if newest is None else self.share.index(newest) + 1

    def begin(self) -> int:
        """Make the folder, or drop the lines of requests that were in flight; how many are served.

        Raises:
            UserError: If a line of a served request is missing or damaged.
        """
        served = self.num_served()
        kept = [record for record in self.records() if record.request < self.share.request(served)]
        if [record.request for record in kept] != [self.share.request(index) for index in range(served)]:
            raise UserError(f"{self.records_file}: has not one line for each of {served} served requests. {REMEDY}")
        write_text(HEADER + "".join(map(line_of, kept)), self.records_file)
        return served

    def records(self, first: int = 0, count: int | None = None) -> Iterator[RequestRecord]:
        """So many lines from that of one of its requests on; one that was cut off while it was written is none."""
        if self.records_file.is_file():
            stop = None if count is None else first + 1 + count
            lines = self.records_file.read_text(encoding="utf-8").splitlines(keepends=True)  # behind the header
            for number, line in islice(enumerate(lines, 1), first + 1, stop):
                if line.endswith("\n"):
                    yield parsed(LINE, line, f"{self.records_file}:{number}", REMEDY)

    def write(self, served: Served, record: RequestRecord) -> None:
        """Note a request that is answered."""
        with self.records_file.open("a", encoding="utf-8") as file:
            file.write(line_of(record))
        write_served(served, self.path(served.request))

    def read(self, requests: Sequence[int]) -> list[Served]:
        """Served requests by their places in the stream.

        Raises:
            UserError: If one is missing or damaged.
        """
        return [read_served(self.path(request)) for request in requests]

    def forget(self, requests: Iterable[int]) -> None:
        """Delete the files of requests that nothing will learn any more; the newest marks how far serving came."""
        newest = self.share.request(self.num_served() - 1)
        for request in requests:
            if request != newest:
                self.path(request).unlink(missing_ok=True)


def line_of(record: RequestRecord) -> str:
    """A record as a line."""
    return json.dumps(record.to_json(), ensure_ascii=False) + "\n"


def merge_records(journals: Sequence[Journal], path: Path) -> None:
    """One file of the records of all processes, in the order of the stream."""
    records = sorted((each for journal in journals for each in journal.records()), key=lambda each: each.request)
    write_text(HEADER + "".join(map(line_of, records)), path)
