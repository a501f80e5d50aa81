"""Blocks as text for a terminal: columns are aligned, and what stands under a title is set in."""

from textwrap import fill, indent

from architectures.pages.blocks import (
    Absent,
    Block,
    Caution,
    Code,
    Facts,
    Figure,
    Folded,
    Items,
    Section,
    Sentence,
    Table,
    Texts,
    Verdict,
)

WIDTH, SET_IN = 120, "  "


def terminal(*blocks: Block) -> str:
    """Blocks with an empty line between; within a section they stand close, in lines of at most WIDTH."""
    return "\n\n".join(map(in_terminal, blocks))


def in_terminal(block: Block) -> str:  # noqa: PLR0911  # one for each kind
    match block:
        case Section(title, blocks) | Folded(title, blocks):
            return "\n".join([title, *map(under_title, blocks)])
        case Table(columns, rows, caption):
            lines = aligned([list(columns), *([str(cell) for cell in row] for row in rows)])
            return f"{caption}\n{lines}" if caption else lines
        case Facts(pairs):
            width = max(len(name) for name, _ in pairs)
            return "\n".join(f"{name:{width}}  {words}" for name, words in pairs)
        case Items(texts):
            return "\n".join(f"- {text}" for text in texts)
        case Code(text):
            return indent(text, SET_IN)
        case Caution(text):
            return f"WARNING: {text}"
        case Sentence(text) | Verdict(text) | Absent(text):
            return text
        case Figure() | Texts():
            return block.alt


def under_title(block: Block) -> str:
    """A block set in; a sentence is broken between words, all of its lines but the first further in."""
    if isinstance(block, Sentence):
        return fill(
            block.text,
            WIDTH,
            initial_indent=SET_IN,
            subsequent_indent=2 * SET_IN,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return indent(in_terminal(block), SET_IN)


def aligned(lines: list[list[str]]) -> str:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])] for first, *rest in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)
