"""One progress bar for every long loop: what is done, how fast, and how long it will still take."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Item = TypeVar("Item")


def track(items: Iterable[Item], *, description: str, total: int) -> Iterator[Item]:
    """Yield the items while a bar on stderr shows count, elapsed time and time left; silent when stderr is no terminal.

    Args:
        items: Anything iterable; each item counts one.
        description: What is being done, in a few words.
        total: How many items there will be.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(description, total=total)
        for item in items:
            yield item
            progress.advance(task)
