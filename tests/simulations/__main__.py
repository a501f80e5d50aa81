"""Simulate every interval of the project, keep what was found, and write it as a table of docs/evaluate.md.

python -m tests.simulations --out benchmarks/results/simulations.json --doc docs/evaluate.md
"""

import argparse
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from architectures.console import Table, markdown, replace_between
from architectures.manifest import git_commit
from tests.simulations.acceptance import (
    checkpoint_rows,
    difference_rows,
    exam_rows,
    rate_rows,
    replay_rows,
    served_rows,
)
from tests.simulations.latency import latency_rows, read_series
from tests.simulations.prediction import prediction_rows
from tests.simulations.prompts import UNEQUAL
from tests.simulations.shares import Row
from tests.simulations.speed import live_rows, precise_rows, speed_rows, unequal_rows
from tests.simulations.turns import read_recordings

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
UNEQUAL_SIZES = (12, 24, 48)  # prompts, one in six of them ten times as long
COLUMNS = ("interval or decision", "samples", "nominal", "simulated", "±")
SIZE = re.compile(r"\d+(?:\.\d+)?|equal|varying")  # the part of a sample that differs within one line of the table
BEGIN, END = "<!-- simulations: begin -->", "<!-- simulations: end -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=Path, default=RESULTS / "self_speed.json")
    parser.add_argument("--steps", type=Path, default=RESULTS / "step_times.json")
    parser.add_argument("--runs", type=int, default=1000, help="of each; half or a quarter of the slow ones")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--doc", type=Path, required=True)
    options = parser.parse_args()
    rows = []
    for row in all_rows(options):
        print(" | ".join(cells_of(row)), flush=True)
        rows.append(row)
    result = {"rows": [asdict(row) for row in rows], "seed": options.seed, "commit": git_commit()}
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    options.doc.write_text(with_table(options.doc.read_text(encoding="utf-8"), rows), encoding="utf-8")


def all_rows(options: argparse.Namespace) -> Iterator[Row]:
    """Everything, in the order of the table."""
    recordings, series, seed = read_recordings(options.turns), read_series(options.steps), options.seed
    yield from speed_rows(recordings, options.runs // 2, seed=seed)
    yield from unequal_rows(recordings, options.runs, seed=seed)
    yield from precise_rows(recordings, options.runs // 4, seed=seed)
    yield from live_rows(recordings, options.runs, seed=seed)
    yield from replay_rows(4 * options.runs, seed=seed)
    yield from replay_rows(options.runs, seed=seed, sizes=(12,), lengths=UNEQUAL[0])
    yield from rate_rows(options.runs, seed=seed)
    for lengths in UNEQUAL:
        yield from rate_rows(options.runs, seed=seed, sizes=UNEQUAL_SIZES, lengths=lengths)
    yield from difference_rows(options.runs // 4, seed=seed)
    yield from difference_rows(options.runs // 4, seed=seed, sizes=UNEQUAL_SIZES, lengths=UNEQUAL[0])
    yield from checkpoint_rows(options.runs // 2, seed=seed)
    yield from checkpoint_rows(options.runs // 2, seed=seed, sizes=UNEQUAL_SIZES, lengths=UNEQUAL[0])
    yield from prediction_rows(series, options.runs // 4, seed=seed)
    yield from prediction_rows(series, options.runs // 4, seed=seed, sizes=UNEQUAL_SIZES, lengths=UNEQUAL[0])
    yield from latency_rows(series, options.runs // 2, seed=seed)
    yield from exam_rows(options.runs, seed=seed)
    yield from served_rows(options.runs, seed=seed)


def with_table(text: str, rows: Iterable[Row]) -> str:
    """A page with the table between its two marks: one line for each decision, over all sample sizes of a kind."""
    kinds: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        kinds.setdefault((row.what, SIZE.sub("#", row.size)), []).append(row)
    return replace_between(text, BEGIN, END, markdown(Table(COLUMNS, [merged_cells(each) for each in kinds.values()])))


def merged_cells(rows: Sequence[Row]) -> tuple[str, ...]:
    """One line: the sizes, and the smallest and the largest share, in percent."""
    sizes = [SIZE.findall(row.size) for row in rows]
    columns = iter(["/".join(dict.fromkeys(column)) for column in zip(*sizes, strict=True)])
    samples = SIZE.sub(lambda _: next(columns), rows[0].size)
    least, largest = (f"{pick(row.share for row in rows):.1%}" for pick in (min, max))
    simulated = least if least == largest else f"{least} to {largest}"
    return rows[0].what, samples, nominal_of(rows[0]), simulated, f"{max(row.error for row in rows):.1%}"


def cells_of(row: Row) -> tuple[str, ...]:
    """One simulation, in percent."""
    return row.what, row.size, nominal_of(row), f"{row.share:.1%}", f"{row.error:.1%}"


def nominal_of(row: Row) -> str:
    """The share that is aimed at."""
    if row.nominal is None:
        return "power"
    return f"{100 * row.nominal:g}%" if row.holds else f"at most {100 * row.nominal:g}%"


if __name__ == "__main__":
    main()
