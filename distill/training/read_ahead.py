"""Batches made while those before them are trained on: laid out, and their rows of a teacher's cache read, by a thread.

The same batches in the same order: which answers one holds is decided by the sampler alone, and making it draws nothing
at random. No worker processes, which would begin anew with every epoch and copy each batch once more.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch.utils.data import DataLoader

BATCHES_AHEAD = 2  # that are held beside the one that is trained on


class ReadAhead(DataLoader[Any]):
    """A loader without worker processes whose next batches are made meanwhile. Composer takes loaders and no iterators.

    What goes wrong while a batch is made is raised where it is asked for.
    """

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch has a class here
        """A thread of its own for every epoch, which ends with it, also where the epoch is broken off."""
        return made_ahead(super().__iter__())


def made_ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """The same values, the next ones asked for by a thread before they are wanted."""
    end = object()
    reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
    try:
        asked = deque(reader.submit(next, batches, end) for _ in range(BATCHES_AHEAD))
        while (batch := asked.popleft().result()) is not end:
            asked.append(reader.submit(next, batches, end))
            yield batch
    finally:
        reader.shutdown(wait=True, cancel_futures=True)
