"""Several processes in one: threads that take turns, each with its share of some work."""

import threading
from collections.abc import Callable
from typing import TypeVar

from architectures.sharing import Board, Share

Outcome = TypeVar("Outcome")


class ThreadBoard(Board):
    """Values of all threads. One runs at a time: until it waits for a value, or has ended."""

    def __init__(self) -> None:
        self.turn = threading.Condition()
        self.values: dict[str, bytes] = {}
        self.failed: BaseException | None = None

    def put(self, name: str, value: bytes) -> None:
        assert name not in self.values, f"{name} is used twice"
        self.values[name] = value
        self.turn.notify_all()

    def get(self, name: str) -> bytes:
        assert self.turn.wait_for(lambda: name in self.values or self.failed, timeout=60), f"nobody says {name}"
        if self.failed is not None:
            raise ConnectionError("another process has failed") from self.failed
        return self.values[name]

    def drop(self, name: str) -> None:
        self.values.pop(name, None)


def by_processes(count: int, work: Callable[[Share], Outcome]) -> list[Outcome]:
    """What each of so many processes makes of some work; the first error of one is raised."""
    board, outcomes = ThreadBoard(), dict[int, Outcome]()

    def run(index: int) -> None:
        with board.turn:
            try:
                outcomes[index] = work(Share(index, count, board if count > 1 else None))
            except BaseException as error:
                board.failed = board.failed or error
            board.turn.notify_all()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if board.failed is not None:
        raise board.failed
    return [outcomes[index] for index in range(count)]
