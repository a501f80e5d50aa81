"""`widedraft report`: its settings, and what it prints. No torch until it runs."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from architectures.files.section import Section
from architectures.settings.flags import Flag

PAGE_NAME = "report.html"


def page_name(path: Path | None) -> Path | None:
    """The path, if a page can be written there."""
    if path is not None and (path.suffix != ".html" or path.is_dir()):
        raise ValueError(f"{path}: must name a file that ends in .html")
    return path


class ReportSettings(Section):
    """Scorecards of a report, and where it goes."""

    runs: Annotated[tuple[Path, ...], Flag(metavar="RUN", is_word=True)] = Field(
        description="Directory of a run or of a scorecard, or a scorecard.json; each is compared with the first."
    )
    latency: Annotated[Path | None, Flag(metavar="FILE")] = Field(
        default=None,
        description="Step times of the same models at other batches, to predict speedups there.",
    )
    out: Annotated[
        Path | None,
        AfterValidator(page_name),
        Flag(metavar="FILE", absent=f"{PAGE_NAME} next to the scorecard, of several in this directory"),
    ] = Field(default=None, description="The page.")


def report(settings: ReportSettings) -> None:
    """Write the page and print its path."""
    from eval.report import scorecard_path, write_report

    runs = settings.runs
    out = settings.out or (scorecard_path(runs[0]).with_name(PAGE_NAME) if len(runs) == 1 else Path(PAGE_NAME))
    print(write_report(runs, out, latency=settings.latency))
