"""Scorecards -> the HTML of a report, and its plots as PNG. The template escapes every text that it is given."""

import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from architectures.files.atomic import write_bytes, write_text
from architectures.pages.blocks import Figure, Section
from architectures.progress.track import track
from eval.pages.drawing import Drawing, render
from eval.report.batches import best_batches
from eval.report.depth import depth_section
from eval.report.groups import groups_section
from eval.report.lookaheads import lookaheads_section
from eval.report.origin import origin_section
from eval.report.positions import positions_section
from eval.report.round_time import round_time_section
from eval.report.summary import summary_section
from eval.report.texts import texts_section
from eval.report.training import training_section
from eval.report_inputs.cards import Card, read_cards
from eval.report_inputs.drafts import scored_drafts
from eval.report_inputs.grid_file import Grids, grids_of
from eval.report_opening.opening import Opening, opening_of

TEMPLATE = "page.html.jinja"


def write_report(runs: Sequence[Path], out: Path, *, latency: Path | None = None) -> list[Path]:
    """Write one page about the scorecards of some runs, and its plots beside it.

    Args:
        runs: Each a run's folder, the folder of a scorecard, or the file.
        out: The page, replaced if it is there.
        latency: Step times at other batches, that `widedraft latency` wrote of the same models.

    Returns:
        The files that were written, the page first.

    Raises:
        UserError: If a file cannot be read, or they are of different targets.
    """
    cards = read_cards(runs)
    return write_page(cards, grids_of(cards, latency), out)


def write_page(cards: Sequence[Card], grids: Grids, out: Path) -> list[Path]:
    """Write the page of scorecards that were read already, and its plots beside it; returns the files."""
    opening, sections = report_opening(cards, grids), report_sections(cards, grids)
    figures = page_figures(opening, sections)
    ticks = track(figures, description="drawing plots", total=len(figures))
    drawings = {figure.name: render(figure) for figure in ticks}
    plots = {out.with_name(f"{out.stem}-{name}.png"): drawing.png for name, drawing in drawings.items()}
    for path, png in plots.items():
        write_bytes(png, path)
    write_text(report_page(cards, opening, sections, drawings), out)
    return [out, *plots]


def page_figures(opening: Opening, sections: Sequence[Section]) -> list[Figure]:
    """Every plot of the page, in its order."""
    return [opening.picture, *(block for section in sections for block in section.blocks if isinstance(block, Figure))]


def report_opening(cards: Sequence[Card], grids: Grids) -> Opening:
    """The first screen."""
    drafts = scored_drafts(cards)
    return opening_of(drafts, cards, batches=best_batches(drafts, grids))


def report_sections(cards: Sequence[Card], grids: Grids) -> list[Section]:
    """All sections in their order; what a scorecard lacks is named where it would stand."""
    drafts = scored_drafts(cards)
    return [
        summary_section(drafts, cards),
        positions_section(drafts),
        lookaheads_section(drafts),
        round_time_section(drafts),
        depth_section(drafts, cards, grids),
        groups_section(drafts),
        training_section(cards),
        texts_section(drafts),
        origin_section(cards),
    ]


def report_page(
    cards: Sequence[Card], opening: Opening, sections: Sequence[Section], drawings: dict[str, Drawing]
) -> str:
    """The HTML."""
    names = [card.name for card in cards]
    return templates().get_template(TEMPLATE).render(names=names, opening=opening, sections=sections, drawings=drawings)


def templates() -> Environment:
    """The page, and beside it the macro that shows a block."""
    environment = Environment(
        loader=PackageLoader("eval.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["coded"] = coded
    environment.filters["unbroken"] = unbroken
    environment.filters["kind"] = lambda block: type(block).__name__
    return environment


def coded(text: str) -> Markup:
    """A sentence, its commands set as such."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704  # escaped first


def unbroken(text: str) -> str:
    """A sentence whose values stay on one line with their intervals."""
    return re.sub(r" \[[^]]+\]", lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), text)
