"""Progress of every long loop on stderr: a bar on a terminal, now and then a line elsewhere; with the time left."""

import sys
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

LINE_INTERVAL_S = 60  # between two lines, where there is no terminal

Item = TypeVar("Item")


def track(items: Iterable[Item], *, description: str, total: int) -> Iterator[Item]:
    """Yield the items and show how many are done, the time gone and the time left.

    Args:
        items: Anything iterable; each item counts one.
        description: What is being done, in a few words.
        total: How many items there will be.
    """
    show = bar if sys.stderr.isatty() else lines
    return show(items, description, total)


def bar(items: Iterable[Item], description: str, total: int) -> Iterator[Item]:
    """Yield the items under a bar."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(description, total=total)
        for item in items:
            yield item
            progress.advance(task)


def lines(items: Iterable[Item], description: str, total: int) -> Iterator[Item]:
    """Yield the items with a line a minute; a loop that is done sooner says nothing."""
    start_s = reported_s = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        now_s = time.monotonic()
        if now_s - reported_s >= LINE_INTERVAL_S and done < total:
            gone_s = now_s - start_s
            gone, left = (timedelta(seconds=round(spent_s)) for spent_s in (gone_s, gone_s / done * (total - done)))
            print(f"{description}: {done} of {total}, {gone} gone, {left} left", file=sys.stderr, flush=True)
            reported_s = now_s
