"""Progress of long loops on stderr: a bar on a terminal, otherwise a line per minute; both with the time left."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol, TypeVar

LINE_INTERVAL_S = 60  # between two lines; a shorter loop prints nothing

Item = TypeVar("Item")


class Advance(Protocol):
    """Callback advance(work, items=1) that adds finished work and items."""

    def __call__(self, work: float, /, *, items: int = 1) -> None: ...


def track(
    items: Iterable[Item],
    *,
    description: str,
    total: int,
    works: Callable[[Item], float] | None = None,
    whole: float = 0,
) -> Iterator[Item]:
    """Yield the items and show progress and the time left.

    Args:
        works: Work of an item, in any unit; by default 1.
        whole: Work of all items.
    """
    with progress(description, total=total, whole=whole if works else total) as advance:
        for item in items:
            yield item
            advance(works(item) if works else 1)


@contextmanager
def progress(description: str, *, total: int, whole: float) -> Iterator[Advance]:
    """Show the progress of a block, which calls advance(work) after each item, or advance(work, items=0) within one."""
    with (bar if sys.stderr.isatty() else lines)(description, total, whole) as advance:
        yield advance


@contextmanager
def bar(description: str, total: int, whole: float) -> Iterator[Advance]:
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
    """Return the seconds left at the mean speed so far; None before any progress."""
    return elapsed_s * (1 - fraction) / fraction if fraction > 0 else None


def no_progress(work: float, /, *, items: int = 1) -> None:
    """Do nothing."""


def duration(seconds: float | None) -> str:
    """Format seconds as 0:01:30; a question mark if None."""
    return "?" if seconds is None else str(timedelta(seconds=round(max(0.0, seconds))))
