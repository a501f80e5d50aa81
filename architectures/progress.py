"""Progress of long loops on stderr: a bar on a terminal, elsewhere a line a minute; both with the time left."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol, TypeVar

LINE_INTERVAL_S = 60  # between two lines; a loop that is done sooner prints nothing

Item = TypeVar("Item")


class Advance(Protocol):
    """advance(work, items=1): so much more work is done, and with it so many items."""

    def __call__(self, work: float, /, *, items: int = 1) -> None: ...


def track(
    items: Iterable[Item],
    *,
    description: str,
    total: int,
    works: Callable[[Item], float] | None = None,
    whole: float = 0,
) -> Iterator[Item]:
    """Yield the items and show how many are done and the time left.

    Args:
        items: Anything iterable; each item counts one.
        description: What is being done, in a few words.
        total: How many items there will be.
        works: How much work an item is, if some take longer than others; in any unit.
        whole: The work of all items.
    """
    with progress(description, total=total, whole=whole if works else total) as advance:
        for item in items:
            yield item
            advance(works(item) if works else 1)


@contextmanager
def progress(description: str, *, total: int, whole: float) -> Iterator[Advance]:
    """Show the progress of the block, which calls advance(work) after each item, or advance(work, items=0) within one.

    Args:
        description: What is being done, in a few words.
        total: How many items there will be.
        whole: The work of all items, in the unit of `advance`.
    """
    with (bar if sys.stderr.isatty() else lines)(description, total, whole) as advance:
        yield advance


@contextmanager
def bar(description: str, total: int, whole: float) -> Iterator[Advance]:
    """A rich bar."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    text, count = TextColumn("{task.description}"), TextColumn("{task.fields[items]}/{task.fields[of]}")
    columns = (text, BarColumn(), count, TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as shown:
        task, done = shown.add_task(description, total=whole, items=0, of=total), 0

        def advance(work: float, /, *, items: int = 1) -> None:
            nonlocal done
            done += items
            shown.update(task, advance=work, items=done)

        yield advance


@contextmanager
def lines(description: str, total: int, whole: float) -> Iterator[Advance]:
    """A line a minute."""
    start_s = reported_s = time.monotonic()
    done, done_work = 0, 0.0

    def advance(work: float, /, *, items: int = 1) -> None:
        nonlocal done, done_work, reported_s
        now_s, done, done_work = time.monotonic(), done + items, done_work + work
        if now_s - reported_s >= LINE_INTERVAL_S and done < total:
            left = duration(time_left(now_s - start_s, done_work / whole if whole else 0.0))
            print(f"{description}: {done} of {total}, {left} left", file=sys.stderr, flush=True)
            reported_s = now_s

    yield advance


def time_left(elapsed_s: float, fraction: float) -> float | None:
    """Seconds left at the mean speed so far; None before anything is done."""
    return elapsed_s * (1 - fraction) / fraction if fraction > 0 else None


def no_progress(work: float, /, *, items: int = 1) -> None:
    """Show nothing."""


def duration(seconds: float | None) -> str:
    """0:01:30; a question mark if it is not known."""
    return "?" if seconds is None else str(timedelta(seconds=round(max(0.0, seconds))))
