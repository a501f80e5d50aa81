"""Tables and text, for a terminal (rich) and as Markdown."""

import io
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

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
