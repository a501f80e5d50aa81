"""What became of the mutants, as the tables of docs/mutants.md.

python -m benchmarks.mutants.page benchmarks/results/mutants.jsonl docs/mutants.md
"""

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from architectures.pages.blocks import Table
from architectures.pages.markdown import between, markdown
from benchmarks.mutants.areas import AREAS
from benchmarks.mutants.verdicts import COUNTED, Tried, read_tried

BEGIN, END = "<!-- mutants: begin -->", "<!-- mutants: end -->"


def main(tried_file: Path, doc: Path) -> None:
    """Fill the marked part of the page."""
    text = doc.read_text(encoding="utf-8")
    doc.write_text(between(text, BEGIN, END, page(read_tried(tried_file))), encoding="utf-8")


def page(tried: Iterable[Tried]) -> str:
    """Counts by area, then everything that no test noticed."""
    rows = [attempt for attempt in tried if attempt.verdict in COUNTED]
    counts = Counter((attempt.mutant.area, attempt.verdict) for attempt in rows)
    areas = [area for area in AREAS if any(counts[area, verdict] for verdict in COUNTED)]
    summary = [[area, str(sum(counts[area, each] for each in COUNTED)), *shown(counts, area)] for area in areas]
    lived = [attempt for attempt in rows if attempt.verdict != "killed"]
    return markdown(
        Table(("area", "mutants", *COUNTED), summary),
        Table(("no test noticed", "before", "after", "because"), list(map(cells, lived))),
    )


def shown(counts: Counter[tuple[str, str]], area: str) -> list[str]:
    return [str(counts[area, verdict]) for verdict in COUNTED]


def cells(attempt: Tried) -> list[str]:
    _, before, after = attempt.mutant.words
    return [f"{attempt.mutant.file}:{attempt.mutant.line}", f"`{before}`", f"`{after}`", attempt.by or "not known yet"]


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
