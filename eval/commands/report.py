"""`widedraft report`: its settings, and what it prints. No torch until it runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from architectures.errors import UserError
from architectures.files.section import Section
from architectures.pages.counts import number_of
from architectures.settings.flags import Flag

PAGE_NAME = "report.html"


def page_name(path: Path | None) -> Path | None:
    """The path, where a page can be written and nothing else is written over."""
    if path is not None and (path.suffix != ".html" or path.is_dir()):
        raise ValueError(f"{path}: must name a file that ends in .html. The plots go beside it.")
    return path


class ReportSettings(Section):
    """What a report is made of, and where it goes."""

    runs: Annotated[tuple[Path, ...], Flag(metavar="RUN", is_word=True)] = Field(
        description="A run's folder, the folder of a scorecard, or a scorecard.json; each is compared with the first."
    )
    latency: Annotated[Path | None, Flag(metavar="FILE")] = Field(
        default=None,
        description="Step times of the same models that `widedraft latency --out` wrote: predicts speed at other "
        "batches.",
    )
    out: Annotated[
        Path | None,
        AfterValidator(page_name),
        Flag(metavar="FILE", absent=f"{PAGE_NAME} beside the scorecard, of several in this folder"),
    ] = Field(default=None, description="The page; plots go beside it.")


def report(settings: ReportSettings) -> None:
    """Write the page and its plots, and say where they are."""
    from eval.report.page import write_report

    out = settings.out or default_page(settings.runs)
    if out.is_dir():
        raise UserError(f"{out}: is a folder. Remove it, or name another page with --out.")
    page, *plots = write_report(settings.runs, out, latency=settings.latency)
    print(f"{page}: open it in a browser; {number_of(len(plots), 'plot')} beside it")


def default_page(runs: Sequence[Path]) -> Path:
    """Where the page goes that no one named."""
    from eval.report_inputs.cards import card_path

    return card_path(runs[0]).with_name(PAGE_NAME) if len(runs) == 1 else Path(PAGE_NAME)
