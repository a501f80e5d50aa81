"""Blocks as Markdown. Only bars in cells are escaped: whoever publishes texts of others makes them plain before."""

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


def markdown(*blocks: Block, level: int = 1) -> str:
    """Paragraphs; titles of sections stand at `level`, those of sections within them one lower. No last line break."""
    return "\n\n".join(in_markdown(block, level) for block in blocks)


def in_markdown(block: Block, level: int) -> str:  # noqa: PLR0911  # one for each kind
    match block:
        case Section(title, blocks) | Folded(title, blocks):
            heading = Sentence(f"{'#' * level} {title}")
            return markdown(heading, *blocks, level=level + 1)
        case Table(columns, rows, caption):
            lines = [columns, ["---"] * len(columns), *rows]
            bars = "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)
            return f"{caption}\n\n{bars}" if caption else bars
        case Facts(pairs):
            return in_markdown(Items([f"{name}: {words}" for name, words in pairs]), level)
        case Items(texts):
            return "\n".join(f"- {text}" for text in texts)
        case Code(text):
            return f"```\n{text}\n```"
        case Verdict(text):
            return f"**{text}**"
        case Caution(text):
            return f"> **Warning:** {text}"
        case Sentence(text) | Absent(text):
            return text
        case Figure() | Texts():
            return block.alt


def between(page: str, begin: str, end: str, written: str) -> str:
    """A page that holds what a program wrote between two marks, with other words there."""
    before, rest = page.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n\n{written}\n\n{end}{after}"
