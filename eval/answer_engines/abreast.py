"""Pieces of work in threads, a bounded number at once, in whatever order they end."""

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True)
class Done(Generic[Result]):
    """What a piece came to."""

    result: Result


@dataclass(frozen=True)
class Failed:
    """What ended one."""

    error: BaseException


def in_any_order(pieces: Iterable[Callable[[], Result]], *, at_once: int) -> Iterator[Result]:
    """Results as they come.

    The first failure is raised at once. What is under way then is not waited for: threads that wait for a server would
    hold up an interruption for as long as that takes; they begin nothing more, and end with the process.

    Args:
        pieces: Taken one by one, each when a thread is free for it.
        at_once: Threads.
    """
    left, lock, stopped = iter(pieces), threading.Lock(), threading.Event()
    outcomes: SimpleQueue[Done[Result] | Failed | None] = SimpleQueue()

    def work() -> None:
        while not stopped.is_set():
            with lock:
                piece = next(left, None)
            if piece is None:
                break
            try:
                outcomes.put(Done(piece()))
            except BaseException as error:  # whatever it is, it is raised where results are waited for
                outcomes.put(Failed(error))
                break
        outcomes.put(None)

    for _ in range(at_once):
        threading.Thread(target=work, daemon=True).start()
    try:
        yield from results(outcomes, at_once)
    finally:
        stopped.set()


def results(outcomes: "SimpleQueue[Done[Result] | Failed | None]", threads: int) -> Iterator[Result]:
    """What threads found, until all have ended."""
    while threads:
        outcome = outcomes.get()
        if outcome is None:
            threads -= 1
        elif isinstance(outcome, Failed):
            raise outcome.error
        else:
            yield outcome.result
