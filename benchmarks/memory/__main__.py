"""The most memory that one process of each stage takes, on this machine's processor, and what `check` says of it.

python -m benchmarks.memory             # the table; with --write into docs/scale.md
python -m benchmarks.memory tell        # what `check` says now of the cases that were measured
python -m benchmarks.memory measure     # all cases; --only WORD those with this word in model, stage or kind
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from architectures.checkpoints.manifest import provenance
from architectures.errors import UserError
from architectures.files.atomic import write_json, write_text
from architectures.pages.blocks import Block, Sentence, Table
from architectures.pages.markdown import between, markdown
from architectures.pages.terminal import terminal
from benchmarks.memory.cases import PROGRAMS, RECIPE, Case, cases, write_inputs
from benchmarks.memory.measured import COMMAND, FILE, Peak, Peaks, peak_rows, read_peaks
from distill.checking.check import cache_bytes
from distill.checking.fits import Models, stage_needs
from distill.checking.planned_cut import planned
from distill.estimates.expected_work import read_rows, unwritten_work
from distill.estimates.trainings import trainings
from distill.expected_time.devices import processor_device_name
from distill.process.exits import report_user_errors
from distill.recipe.recipe import Recipe, load_recipe

DOC = Path(__file__).parents[2] / "docs" / "scale.md"
BEGIN, END = "<!-- peaks: begin -->", "<!-- peaks: end -->"
COLUMNS = ("target", "stage", "processes", "told", "measured", "told over measured")


def options_of(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description="Memory of every stage, measured.")
    parser.add_argument("what", nargs="?", choices=("table", "measure", "tell"), default="table")
    parser.add_argument("--write", action="store_true", help="write docs/scale.md")
    parser.add_argument("--only", default="", help="of measure: cases with this word; others stay as they are")
    parser.add_argument("--out", type=Path, default=FILE, help="of measure")
    parser.add_argument("--folder", type=Path, default=Path("runs/memory"), help="of measure's runs")
    return parser.parse_args(words)


def measure(options: argparse.Namespace) -> None:
    """Run every case in processes of its own; the file is written anew after each."""
    write_inputs(options.folder)
    wanted = [case for case in cases(options.folder) if options.only in f"{case.model} {case.stage} {case.how}"]
    for case in wanted:
        peak = measured(case, options.folder)
        print(f"{case.model}: {case.stage} {case.how}: {peak.ratio:.2f}", flush=True)
        write_json(asdict(with_peak(read_peaks(options.out), peak)), options.out)


def tell(options: argparse.Namespace) -> None:
    """Write what is told today beside what was measured."""
    peaks = read_peaks(options.out)
    if peaks is None:
        raise UserError(f"{options.out}: nothing was measured. {COMMAND} does.")
    write_inputs(options.folder)
    told = {named(case): told_of(case, options.folder) for case in cases(options.folder)}
    rows = tuple(replace(row, told_bytes=told[named(row)]) for row in peaks.rows)
    write_json(asdict(replace(peaks, rows=rows)), options.out)


def named(of: Case | Peak) -> tuple[str, str, str, int]:
    """What sets a case apart."""
    return of.model, of.stage, of.how, of.processes


def told_of(case: Case, folder: Path) -> int:
    return told_bytes(load_recipe(RECIPE, words_of(case, folder)), case.stage, case.processes)


def words_of(case: Case, folder: Path) -> list[str]:
    return [*case.words, f"run_dir={folder / case.run}"]


def with_peak(known: Peaks | None, peak: Peak) -> Peaks:
    """All peaks with one more, or with one of them anew."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    peaks = known or Peaks("", "", None, ())
    by_case = {named(row): row for row in peaks.rows} | {named(peak): peak}
    made = {"device": processor_device_name(), "measured": now, "commit": provenance()["git_commit"]}
    return replace(peaks, **made, rows=tuple(by_case.values()))


def measured(case: Case, folder: Path) -> Peak:
    """One case.

    Raises:
        UserError: If its command fails.
    """
    words, out = words_of(case, folder), folder / "peak"
    for old in folder.glob("peak.*.json"):
        old.unlink()
    begun_anew(folder / case.run, case.stage)
    command = [sys.executable, "-m", *launcher(case.processes), "benchmarks.memory.child", str(out)]
    command += [*PROGRAMS[case.stage], str(RECIPE), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise UserError(f"{' '.join(command)}: ended with {completed.returncode}.\n{completed.stderr[-2000:]}")
    found = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("peak.*.json")]
    most = max(each["peak_bytes"] - each["start_bytes"] for each in found)
    return Peak(*named(case), told_of(case, folder), most)


def launcher(processes: int) -> list[str]:
    return [] if processes == 1 else ["composer", "-n", str(processes), "-m"]


def begun_anew(run: Path, stage: str) -> None:
    """Training begins where an earlier one did."""
    if stage == "distillation":
        for made in ("checkpoints", "logs", "draft"):
            shutil.rmtree(run / made, ignore_errors=True)


def told_bytes(recipe: Recipe, stage: str, processes: int) -> int:
    """What `check` says of one process of a stage."""
    cut = planned(recipe)
    work = unwritten_work(recipe, [read_rows(source, recipe.data) for source in recipe.data.prompts])
    cached = sum(cache_bytes(recipe, cut, work).values())
    models = Models(cut.target, cut.source, cut.draft, cached, on_gpu=False)
    needs = stage_needs(recipe, models, processes=processes, trained=trainings(recipe, cut.target, cut.draft))
    return next(need.size_bytes for need in needs if need.stage == stage)


def blocks(peaks: Peaks | None) -> Iterator[Block]:
    if peaks is None:
        yield Sentence(f"Not measured yet: `{COMMAND}` does.")
        return
    made = f"{peaks.device}, {peaks.measured[:10]}, commit {(peaks.commit or 'unknown')[:8]}"
    yield Sentence(f"{made}; `{COMMAND}`.")
    yield Table(list(COLUMNS), [list(row) for row in peak_rows(peaks)])


def table(options: argparse.Namespace) -> None:
    if not options.write:
        print(terminal(*blocks(read_peaks())))
        return
    text = DOC.read_text(encoding="utf-8")
    write_text(with_peaks(text, read_peaks()), DOC)


def with_peaks(text: str, peaks: Peaks | None) -> str:
    """A page with its table made anew."""
    return between(text, BEGIN, END, markdown(*blocks(peaks), level=2))


def main(words: list[str] | None = None) -> int:
    options = options_of(words)
    does = {"measure": measure, "tell": tell, "table": table}[options.what]
    return report_user_errors(lambda: does(options))


if __name__ == "__main__":
    sys.exit(main())
