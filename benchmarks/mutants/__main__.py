"""Breaks rules of the source one at a time and runs the tests of their area; each must turn one red.

    make mutants

Losses, decoding rules, caches, masks, resuming and scoring. `benchmarks.mutants.draw` draws by a seed what is broken,
and `benchmarks.mutants.page` makes tables of what became of it. Mutants that change nothing anybody could see are told
in equivalents.jsonl, with the reason, and count as such.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.mutants.areas import AREAS, chosen_tests
from benchmarks.mutants.mutant import Mutant, read_mutants
from benchmarks.mutants.trying import Outcome, load_libraries, make_copy, run_tests, try_mutant
from benchmarks.mutants.verdicts import COUNTED, Tried, read_reasons, tried

MOST_S = 1800.0  # of tests that nothing is broken for


def main() -> None:
    """Try mutants of every area until enough could be run, and write what became of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=Path, required=True, help="what benchmarks.mutants.draw wrote")
    parser.add_argument("--number", type=int, default=26, help="of each area")
    parser.add_argument("--areas", nargs="+", choices=AREAS, default=list(AREAS))
    parser.add_argument("--jobs", type=int, default=2, help="areas at a time")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    load_libraries()
    mutants = read_mutants(options.mutants)
    options.out.write_text("", encoding="utf-8")
    with TemporaryDirectory() as folder, ProcessPoolExecutor(options.jobs, get_context("fork")) as pool:
        work = [
            pool.submit(try_area, area, mutants, options.number, Path(folder) / area, options.out)
            for area in options.areas
        ]
        counts = [future.result() for future in work]
    print(f"{sum(counts)} mutants: {options.out}")


def try_area(area: str, mutants: list[Mutant], number: int, copy: Path, out: Path) -> int:
    """Append what became of the first mutants that could be run; how many."""
    make_copy(copy)
    whole = run_tests(AREAS[area].test_files(), copy, most_s=MOST_S)
    if whole.code != 0:
        sys.exit(f"{area}: {whole.failed or 'its tests'} fail with nothing broken (pytest ended with {whole.code})")
    count, reasons = 0, read_reasons()
    for attempt in attempts(area, mutants, copy, whole, reasons):
        count += attempt.verdict in COUNTED
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(attempt)) + "\n")
        print(f"{area} {count}/{number}: {attempt.verdict} {attempt.mutant.file}:{attempt.mutant.line}", flush=True)
        if count == number:
            break
    return count


def attempts(
    area: str, mutants: list[Mutant], copy: Path, whole: Outcome, reasons: dict[tuple[str, str, str], str]
) -> Iterator[Tried]:
    """Each mutant of the area in turn."""
    for mutant in mutants:
        if mutant.area == area:
            tests = chosen_tests(area, mutant.file, whole.seconds)
            yield tried(mutant, try_mutant(mutant, tests, copy, most_s=MOST_S), reasons.get(mutant.words))


if __name__ == "__main__":
    main()
