"""The process beside a training that answers its requests, as the training sees it."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from architectures.errors import UserError
from distill.process.idle_cores import yield_cores
from distill.requests.arrivals import with_records
from distill.requests.journal import Journal
from distill.requests.served import Served
from distill.requests.weights import write_weights
from eval.records.request import RequestRecord

KEPT_DRAFTS = 4  # the newest, and those that the other process may be reading


@dataclass
class LiveRequests:
    """Requests that a process of their own answers, and writes to the journal.

    Attributes:
        recipe: File of the recipe, with all values.
        journal: Of this process.
        process: That answers; None until there is a draft to answer with.
        served: Requests that it has answered.
        ended: Whether the stream has.
        yields: Whether this process leaves the cores to it.
    """

    recipe: Path
    journal: Journal
    yields: bool
    process: subprocess.Popen[str] | None = None
    served: int = field(init=False)
    ended: bool = False

    def __post_init__(self) -> None:
        self.served = self.journal.begin()

    def take(self, update: int) -> list[tuple[Served, RequestRecord]]:
        """See Requests.

        Raises:
            UserError: If the process that answers has ended with a mistake, which it has told.
        """
        share = self.journal.share
        while self.served < (update + 1) * share.own and not self.ended:
            self.hear()
        wanted = [share.request(index) for index in range(update * share.own, (update + 1) * share.own)]
        return with_records(self.journal, wanted[: max(0, self.served - update * share.own)])

    def hear(self) -> None:
        """Wait for one word of the process that answers."""
        assert self.process is not None, "a draft is published before requests are taken"
        assert self.process.stdout is not None
        word = self.process.stdout.readline().strip()
        if word == "served":
            self.served += 1
        elif word == "ended":
            self.ended = True
        elif not word:
            raise UserError(
                f"{self.recipe}: the process that answers requests has ended ({self.process.wait()}); what it said "
                "stands above. Run the same command again: answered requests are kept."
            )

    def publish(self, model: nn.Module, *, updates: int) -> None:
        """See Requests."""
        path = self.journal.folder / f"draft-{updates:08d}.safetensors"
        write_weights(model, path)
        if self.process is None:
            self.process = self.start(path, updates)
            if self.yields:
                yield_cores()
        elif not self.ended:
            self.tell(f"draft {updates} {path}")
        for old in sorted(self.journal.folder.glob("draft-*.safetensors"))[:-KEPT_DRAFTS]:
            old.unlink()

    def start(self, draft: Path, updates: int) -> "subprocess.Popen[str]":
        """The process, at the first request that is not answered yet."""
        share = self.journal.share
        words: Sequence[str] = [
            *(sys.executable, "-m", "distill.requests.worker", str(self.recipe), str(self.journal.folder)),
            *(str(draft), str(updates), str(share.rank), str(share.world)),
        ]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def tell(self, line: str) -> None:
        """One line to the process; one that has ended is noticed when it is heard."""
        assert self.process is not None
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return

    def close(self) -> None:
        """See Requests: it ends when nobody speaks to it any more."""
        if self.process is not None:
            self.process.communicate()  # closes what it hears, and waits
