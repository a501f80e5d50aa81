"""What happens after every update: the draft is judged, handed over, and its figures are logged."""

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from composer import Callback, Logger, State
from composer.utils import dist

from distill.checkpoints.files import find_checkpoints, training_time
from distill.online.feed import RequestFeed
from distill.online.guard import Guard
from distill.requests.journal import Journal, Share, merge_records
from eval.records.request import RequestRecord

NEEDED_CHECKPOINTS = 2  # the newest, and the one that is taken where it is damaged


class Updates(Callback):
    """Judges the draft after every update, hands it to what serves, and logs how it did on the requests before.

    Args:
        feed: Of the requests.
        guard: That takes drafts back.
        records: File of all processes' records, written by rank 0 as the training ends.
        checkpoints: Their folder.
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
            self.tell(
                f"update {updates}: the draft is taken back to that of update {self.guard.good.updates}: {reason}"
            )
        self.feed.requests.publish(self.guard.draft, updates=updates)
        logger.log_metrics(self.figures(updates))

    def tell(self, text: str) -> None:
        """A line on stderr, once."""
        if dist.get_global_rank() == 0:
            print(text, file=sys.stderr)

    def figures(self, updates: int) -> dict[str, float]:
        """Of the requests that were served before the update, of all processes."""
        own = [record for _, record in self.feed.interval]
        records = [record for each in dist.all_gather_object(own) for record in each]
        behind = [updates - 1 - record.updates for record in records]
        return {
            **alphas(records),
            "online/tau": sum(each.tokens for each in records) / sum(each.rounds for each in records),
            "online/requests": float(updates * self.feed.requests.journal.share.interval),
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
            share = self.feed.requests.journal.share
            merge_records([journal_of(self.records.parent, rank, share) for rank in range(share.world)], self.records)

    def close(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        """Nothing is served any more, also after an error."""
        self.feed.requests.close()


def alphas(records: Sequence[RequestRecord]) -> dict[str, float]:
    """Mean alpha of requests, and of those of each source."""
    by_source: dict[str, list[float]] = defaultdict(list)
    for record in records:
        by_source[record.source].append(record.alpha)
    every = [record.alpha for record in records]
    of_each = {f"online/alpha/{source}": sum(some) / len(some) for source, some in by_source.items()}
    return {"online/alpha": sum(every) / len(every), **of_each}


def journal_of(folder: Path, rank: int, share: Share) -> Journal:
    """The journal of one process, in <run>/online."""
    return Journal(folder / f"rank{rank}", Share(rank, share.world, share.interval))
