"""Progress of every long loop on stderr: a bar on a terminal, now and then a line elsewhere; with the time left."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from architectures.progress.processor import CurrentStage
from architectures.progress.time_left import TimeLeft

LINE_INTERVAL_S = 60  # between two lines, where there is no terminal

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
    """Yield the items and show how many are done, the time gone and the time left.

    Args:
        items: Anything iterable; each item counts one.
        description: What is being done, in a few words.
        total: How many items there will be.
        works: How much work an item is, where some take longer than others; in any unit.
        whole: The work of all items.
    """
    with progress(description, total=total, whole=whole if works else total) as advance:
        for item in items:
            yield item
            advance(works(item) if works else 1)


@contextmanager
def progress(description: str, *, total: int, whole: float) -> Iterator[Advance]:
    """Show what the block says of its progress: advance(work) after each item, or advance(work, items=0) within one.

    Args:
        description: What is being done, in a few words.
        total: How many items there will be.
        whole: The work of all items, in the unit of `advance`.
    """
    show = bar if sys.stderr.isatty() else lines
    with show(description, total, TimeLeft(whole, time.monotonic())) as advance:
        yield advance


@contextmanager
def bar(description: str, total: int, time_left: TimeLeft) -> Iterator[Advance]:
    """A bar, with the time left as of the latest item."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[items]}/{task.fields[of]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]} left"),
    )
    with Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task(description, total=time_left.total, items=0, of=total, left="?")

        def advance(work: float, /, *, items: int = 1) -> None:
            time_left.advance(work, time.monotonic())
            done = shown.tasks[0].fields["items"] + items
            shown.update(task, completed=time_left.done, items=done, left=words(time_left.seconds))

        yield advance
    tell_load(description)


@contextmanager
def lines(description: str, total: int, time_left: TimeLeft) -> Iterator[Advance]:
    """A line a minute; a loop that is done sooner says nothing."""
    done, reported_s = 0, time_left.start_s

    def advance(work: float, /, *, items: int = 1) -> None:
        nonlocal done, reported_s
        now_s = time.monotonic()
        time_left.advance(work, now_s)
        done += items
        if now_s - reported_s >= LINE_INTERVAL_S and done < total:
            gone, left = words(now_s - time_left.start_s), words(time_left.seconds)
            print(f"{description}: {done} of {total}, {gone} gone, {left} left", file=sys.stderr, flush=True)
            tell_load(description)
            reported_s = now_s

    yield advance


def tell_load(description: str) -> None:
    """Say that other work has the processor, once in a stage."""
    if (told := CurrentStage.watch.told()) is not None:
        print(f"{description}: {told}.", file=sys.stderr, flush=True)


def no_progress(work: float, /, *, items: int = 1) -> None:
    """Nothing is shown."""


def words(seconds: float | None) -> str:
    """0:01:30; a question mark where nothing is known yet."""
    return "?" if seconds is None else str(timedelta(seconds=round(seconds)))
