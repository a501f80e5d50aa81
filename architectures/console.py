"""Tables and progress bars in the terminal, by rich."""

import io
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, TypeVar

WIDTH = 120  # columns of text under a title
UNLIMITED = 10_000  # columns of a table that is piped: one line per row


@dataclass(frozen=True)
class Table:
    """Rows of cells; without columns a list of names and values."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""


@dataclass(frozen=True)
class TableSection:
    """Heading with the blocks below it."""

    title: str
    blocks: "Sequence[Block]"


Block = str | Table | TableSection  # text is Markdown: a paragraph, a list, or code between ``` lines


def facts(pairs: Sequence[tuple[str, object]]) -> Table:
    return Table((), pairs)


def code(text: str) -> str:
    return f"```\n{text}\n```"


def plural(number: int, thing: str, things: str = "") -> str:
    """Format a count: 1 layer, 2 layers, 1,000 layers."""
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"


def terminal(*blocks: Block) -> str:
    """Format blocks separated by blank lines; blocks below a title are indented."""
    return "\n\n".join(map(_in_terminal, blocks))


def markdown(*blocks: Block, level: int = 1) -> str:
    """Format blocks as paragraphs; section titles are headings of this level."""
    return "\n\n".join(_in_markdown(block, level) for block in blocks)


def replace_between(page: str, begin: str, end: str, text: str) -> str:
    """Replace the text between two marks of a page."""
    before, rest = page.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def _in_terminal(block: Block) -> str:
    if isinstance(block, Table):
        lines = _aligned(block)
        return f"{block.title}\n{lines}" if block.title else lines
    if isinstance(block, TableSection):
        return "\n".join([block.title, *(textwrap.indent(_under_title(each), "  ") for each in block.blocks)])
    if block.startswith("```"):
        return textwrap.indent("\n".join(block.splitlines()[1:-1]), "  ")
    return block


def _under_title(block: Block) -> str:
    """Wrap a paragraph between words, with a hanging indent."""
    if not isinstance(block, str) or "\n" in block:
        return _in_terminal(block)
    return textwrap.fill(block, WIDTH - 2, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _aligned(table: Table) -> str:
    """Align the first column left and the rest right; cells are folded if the terminal is too narrow."""
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=None, show_header=bool(table.columns), pad_edge=False, padding=(0, 2, 0, 0))
    for index, name in enumerate(table.columns or ("", "")):
        grid.add_column(Text(name), justify="right" if index and table.columns else "left", overflow="fold")
    for row in table.rows:
        grid.add_row(*(Text(str(cell)) for cell in row))
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else UNLIMITED
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(grid)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def _in_markdown(block: Block, level: int) -> str:
    if isinstance(block, TableSection):
        return markdown(f"{'#' * level} {block.title}", *block.blocks, level=level + 1)
    if isinstance(block, str):
        return block
    if not block.columns:
        return "\n".join(f"- {name}: {value}" for name, value in block.rows)
    lines = [block.columns, ["---"] * len(block.columns), *block.rows]
    rows = "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)
    return f"{block.title}\n\n{rows}" if block.title else rows


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
    """Return the seconds left at the mean speed so far; None before a hundredth is done."""
    return elapsed_s * (1 - fraction) / fraction if fraction >= 0.01 else None


def no_progress(work: float, /, *, items: int = 1) -> None:
    """Do nothing."""


def duration(seconds: float | None) -> str:
    """Format seconds as 0:01:30; a question mark if None."""
    return "?" if seconds is None else str(timedelta(seconds=round(max(0.0, seconds))))
