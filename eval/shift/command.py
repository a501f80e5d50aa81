"""`widedraft shift`: its settings, and what it writes. No torch."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from architectures.errors import UserError
from architectures.files.section import Section
from architectures.pages import blocks
from architectures.pages.blocks import Block, Figure, Sentence
from architectures.pages.counts import number_of
from architectures.settings.flags import Flag
from architectures.settings.kinds import MOST, Confidence, Once, Seed

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE_NAME = "shift.md"
NUM_RESAMPLES = 2000


class ShiftSettings(Section):
    """Which arms are compared, and how."""

    records: Annotated[tuple[Path, ...], Flag(metavar="RECORDS", is_word=True)] = Field(
        description="Files of answered requests of the same stream, as <run>/online/records.jsonl; each is compared "
        "with the first."
    )
    names: Annotated[tuple[str, ...], Once, Flag(metavar="NAME", absent="those of the runs or files")] = Field(
        default=(), strict=False, description="What each of them is called."
    )
    out: Annotated[Path, Flag(metavar="DIR")] = Field(
        default=Path("shift"), description=f"Folder for {PAGE_NAME} and its plots, as PNG and SVG."
    )
    window: int = Field(default=40, ge=1, le=MOST, description="Requests that are averaged in plots.")
    last_share: float = Field(
        default=0.25, gt=0, le=1, description="Share of each source's requests, the last ones, that tables are of."
    )
    most_common: int = Field(
        default=100, ge=1, le=MOST, description="Commonest tokens whose precision and recall are told."
    )
    tokenizer: Annotated[str | None, Flag(metavar="A", absent="their ids")] = Field(
        default=None, description="Folder or hub id of a model with their tokenizer, to write tokens as text."
    )
    confidence: Confidence = 0.95
    seed: Seed = 17


def shift(settings: ShiftSettings) -> None:
    """Write the page and its plots, and say where they are."""
    if settings.out.exists() and not settings.out.is_dir():
        raise UserError(f"{settings.out}: is no folder. Remove it, or name another folder with --out.")
    num_plots = write_page(page_of(settings), settings.out)
    print(f"{settings.out / PAGE_NAME}: {number_of(num_plots, 'plot')} beside it")


def page_of(settings: ShiftSettings) -> blocks.Section:
    """The page of some files.

    Raises:
        UserError: If one cannot be read, or they are of different requests.
    """
    from eval.acceptance.estimates import Resampling
    from eval.shift.curves import endings
    from eval.shift.page import shift_page
    from eval.shift.reading import read_arms

    arms = read_arms(settings.records, settings.names)
    resampling = Resampling(settings.confidence, NUM_RESAMPLES, settings.seed)
    return shift_page(
        arms,
        endings(arms, settings.last_share, resampling),
        window=settings.window,
        last_share=settings.last_share,
        most_tokens=settings.most_common,
        words=words_of(settings.tokenizer),
        resampling=resampling,
    )


def words_of(tokenizer: str | None) -> "Callable[[int], str]":
    """What a token id is called: its text in quotes, where its tokenizer is known."""
    if tokenizer is None:
        return str
    from architectures.targets.target import resolve_checkpoint
    from eval.models.loading import load_tokenizer

    loaded = load_tokenizer(resolve_checkpoint(tokenizer))
    return lambda token_id: quoted(str(loaded.decode([token_id])))


def quoted(text: str) -> str:
    """A token as Markdown shows it unchanged, with what is unseen escaped."""
    fence = "``" if "`" in text else "`"
    return f"{fence} {json.dumps(text, ensure_ascii=False)} {fence}"


def write_page(page: blocks.Section, out: Path) -> int:
    """Write a page as Markdown into a folder, with each plot as PNG and SVG beside it; returns how many."""
    from architectures.files.atomic import write_bytes, write_text
    from architectures.pages.markdown import markdown
    from architectures.progress.track import track
    from eval.pages.drawing import render, svg_file

    figures = figures_in(page)
    for figure in track(figures, description="drawing plots", total=len(figures)):
        drawing = render(figure)
        write_bytes(drawing.png, out / f"{figure.name}.png")
        write_text(svg_file(drawing), out / f"{figure.name}.svg")
    write_text(f"{markdown(with_images(page))}\n", out / PAGE_NAME)
    return len(figures)


def figures_in(page: blocks.Section) -> list[Figure]:
    """Every plot of a page, in its order."""
    within = [figures_in(block) if isinstance(block, blocks.Section) else [block] for block in page.blocks]
    return [block for part in within for block in part if isinstance(block, Figure)]


def with_images(block: Block) -> Block:
    """A block in which each plot is a link to its file, with the caption below."""
    if isinstance(block, Figure):
        return Sentence(f"![{block.alt}]({block.name}.png)\n\n{block.caption}.")
    return replace(block, blocks=list(map(with_images, block.blocks))) if isinstance(block, blocks.Section) else block
