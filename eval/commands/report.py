"""`widedraft report`: what it is given, and what it prints. No torch until it runs."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from architectures.errors import UserError

PAGE_NAME = "report.html"


def report_arguments(parser: argparse.ArgumentParser) -> None:
    """RUN [RUN ...] --latency FILE --out FILE."""
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="a run's folder, the folder of a scorecard, or a scorecard.json; each is compared with the first",
    )
    parser.add_argument(
        "--latency",
        type=Path,
        metavar="FILE",
        help="step times of the same models that `widedraft latency --out` wrote: predicts speed at other batches",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help=f"the page; plots go beside it (default: {PAGE_NAME} beside the scorecard, of several in this folder)",
    )


def report(options: argparse.Namespace) -> None:
    """Write the page and its plots, and say where they are."""
    require_page(options.out)
    from eval.report.page import write_report

    out = options.out or default_page(options.runs)
    if out.is_dir():
        raise UserError(f"{out}: is a folder. Remove it, or name another page with --out.")
    page, *plots = write_report(options.runs, out, latency=options.latency)
    print(f"{page}: open it in a browser; {len(plots)} plots beside it")


def require_page(out: Path | None) -> None:
    """Raise UserError where no page can be written, or something else would be written over."""
    if out is not None and (out.suffix != ".html" or out.is_dir()):
        raise UserError(f"--out {out}: must name a file that ends in .html. The plots go beside it.")


def default_page(runs: Sequence[Path]) -> Path:
    """Where the page goes that no one named."""
    from eval.report_inputs.cards import card_path

    return card_path(runs[0]).with_name(PAGE_NAME) if len(runs) == 1 else Path(PAGE_NAME)
