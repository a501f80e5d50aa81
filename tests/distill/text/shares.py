"""Processes that read a text together, as threads of one."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, TypeVar

from distill.text.streams import Share

Result = TypeVar("Result")
MOST_S = 60.0  # that one waits for the others


def by_all(size: int, work: Callable[[Share], Result]) -> list[Result]:
    """What the work of each process gives, in the order of ranks."""
    barrier, slots = Barrier(size), [None] * size

    def exchange(rank: int, own: Any) -> list[Any]:
        slots[rank] = own
        barrier.wait(MOST_S)
        found = list(slots)
        barrier.wait(MOST_S)
        return found

    shares = [Share(rank, size, lambda own, rank=rank: exchange(rank, own)) for rank in range(size)]
    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(work, shares))
