"""Processes that read a text together: each reads and tokenizes its own pieces, and hears the tokens of all."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from composer.utils import dist
from torch import distributed

Args = ParamSpec("Args")
Result = TypeVar("Result")


class Share:
    """One process among those that read a text.

    Whatever reads text is run by one thread, in the order in which it was asked for, so that all processes meet in the
    same order whatever else they do.

    Args:
        rank: Of this process.
        size: How many there are.
        exchange: What every process has, in the order of ranks, from what this one has; all of them call it.
    """

    def __init__(self, rank: int = 0, size: int = 1, exchange: Callable[[Any], list[Any]] | None = None):
        self.rank, self.size = rank, size
        self.exchange = exchange or (lambda own: [own])
        self.reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="text")

    @classmethod
    def of_all(cls) -> "Share":
        """Of all processes of a training, which all call this; their messages do not meet those of training."""
        size = dist.get_world_size()
        if size == 1:
            return cls()
        group = distributed.new_group(backend="gloo")

        def exchange(own: Any) -> list[Any]:
            found = [None] * size
            distributed.all_gather_object(found, own, group=group)
            return found

        return cls(dist.get_global_rank(), size, exchange)

    def ahead(self, work: Callable[Args, Result], *args: Args.args, **settings: Args.kwargs) -> "Future[Result]":
        """Begin to read."""
        return self.reader.submit(work, *args, **settings)

    def reads(self, number: int, lanes: int) -> bool:
        """Whether a piece is this process's.

        Every lane is one process's as long as there are lanes enough; otherwise its pieces are dealt to those whose
        ranks are equal to its number modulo lanes.
        """
        if not lanes:
            return number % self.size == self.rank
        piece, lane = divmod(number, lanes)
        if self.size <= lanes:
            return lane % self.size == self.rank
        readers = range(lane, self.size, lanes)
        return readers[piece % len(readers)] == self.rank
