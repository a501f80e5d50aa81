"""The tests marked gpu, run by pytest in processes that share the GPU: a row for each module, as its last test ends."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.outcome_lines import VARIABLE
from benchmarks.gpu.stage import Row, Setting, SkippedError

ROOT = Path(__file__).parents[2]
MODULES = (  # all that have such tests, most valuable first; a test looks for others
    "tests/distill/test_on_a_device.py",
    "tests/distill/test_distributed.py",
    "tests/eval/targets/test_layers.py",
    "tests/eval/decoding/test_fixed_steps.py",
    "tests/eval/decoding/test_on_a_device.py",
    "tests/distill/losses/test_chunked.py",
    "tests/distill/masks/test_train.py",
    "tests/distill/stages/test_pruning.py",
    "tests/distill/text/test_training.py",
    "tests/eval/test_latency.py",
    "tests/eval/decoding/test_answer_steps.py",
)
MOST_PROCESSES = 10  # each holds half a GiB of the GPU by being there
CORES_OF_A_PROCESS = 1.5
LONGEST_TEST_S = 60
POLL_S = 0.2
LOG_NAME = "tests.log"  # what pytest printed
FAILURES_NAME = "failures.log"  # a traceback for each that failed, written as it fails: a run may be cut off


def rows(setting: Setting) -> Iterator[Row]:
    """Run them all; what has not ended at the deadline is counted as unfinished."""
    if setting.device.type != "cuda" or not torch.cuda.is_available():
        raise SkippedError("no CUDA device: every test marked gpu would be skipped")
    processes = max(1, min(MOST_PROCESSES, int(len(os.sched_getaffinity(0)) / CORES_OF_A_PROCESS)))
    words = [*MODULES, "-m", "gpu", "--numprocesses", str(processes), "--dist", "worksteal"]
    # a warning that this machine's versions give and ours do not is no failure of a test
    words += ["-W", "default", f"--timeout={LONGEST_TEST_S}"]
    yield from run_tests(words, setting, cwd=ROOT)


def run_tests(words: Sequence[str], setting: Setting, *, cwd: Path) -> Iterator[Row]:
    """Rows of a run of pytest with the given words; its output stays in LOG_NAME and FAILURES_NAME.

    Raises:
        RuntimeError: After the last row, where tests failed or did not end, or where none was found.
    """
    lines = setting.work / "tests.lines.jsonl"
    lines.unlink(missing_ok=True)
    environment = {
        **os.environ,
        VARIABLE: str(lines),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    command = [sys.executable, "-m", "pytest", "-p", "benchmarks.gpu.outcome_lines", "-p", "no:cacheprovider", *words]
    log, modules = setting.out / LOG_NAME, Modules(setting.out / FAILURES_NAME)
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(command, cwd=cwd, env=environment, stdout=file, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None and setting.left_s > 0:
                time.sleep(POLL_S)
                yield from modules.read(lines)
        finally:
            process.kill()  # its workers end when they hear no more of it
            process.wait()
    yield from modules.read(lines)
    yield from modules.unfinished()
    if not modules.by_name:
        raise RuntimeError(f"pytest ran no test; {' '.join(log.read_text(encoding='utf-8').split()[-30:])}")
    modules.require_all_passed()


@dataclass
class Module:
    """What is known of the tests of one file.

    Attributes:
        ids: All of its tests.
        outcomes: By test, of those that ended.
        seconds: Of all of them together.
        first_failure: The first that failed and why, in a line.
    """

    ids: set[str] = field(default_factory=set)
    outcomes: dict[str, str] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    seconds: float = 0.0
    first_failure: str | None = None

    def count(self, outcome: str) -> int:
        """Tests that ended so."""
        return sum(self.outcomes.get(each) == outcome for each in self.ended)


class Modules:
    """Reads the lines of benchmarks.gpu.outcome_lines as they are written."""

    def __init__(self, failures: Path) -> None:
        self.failures = failures
        self.failures.unlink(missing_ok=True)
        self.by_name: dict[str, Module] = {}
        self.told: set[str] = set()
        self.offset = 0

    def read(self, lines: Path) -> Iterator[Row]:
        """What was written since the last call: a row for every module whose last test has ended."""
        if not lines.is_file():
            return
        with lines.open("rb") as file:
            file.seek(self.offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self.offset += len(whole)
        for line in whole.decode().splitlines():
            self.take(json.loads(line))
        for name, module in self.by_name.items():
            if name not in self.told and module.ended >= module.ids:
                self.told.add(name)
                yield row_of(name, module)

    def unfinished(self) -> Iterator[Row]:
        """A row for every other module, as far as it came."""
        for name, module in self.by_name.items():
            if name not in self.told:
                yield {**row_of(name, module), "unfinished": len(module.ids - module.ended)}

    def require_all_passed(self) -> None:
        """Raise RuntimeError where tests failed or did not end."""
        failed = sum(module.count("failed") for module in self.by_name.values())
        unfinished = sum(len(module.ids - module.ended) for module in self.by_name.values())
        if failed or unfinished:
            first = next((module.first_failure for module in self.by_name.values() if module.first_failure), "none")
            raise RuntimeError(f"{failed} tests failed and {unfinished} did not end; first failure: {first}")

    def keep_traceback(self, line: dict[str, Any]) -> None:
        with self.failures.open("a", encoding="utf-8") as file:
            file.write(f"{'=' * 30} {line['id']} ({line['kind']})\n{line['traceback']}\n\n")

    def take(self, line: dict[str, Any]) -> None:
        if "traceback" in line:
            self.keep_traceback(line)
        if line["kind"] == "collected":
            for test in line["ids"]:
                self.of(test).ids.add(test)
            return
        module, test = self.of(line["id"]), line["id"]
        if line["kind"] == "broken":
            module.ids.add(test)
            line = {**line, "kind": "teardown", "outcome": "failed", "seconds": 0.0}
        module.seconds += line["seconds"]
        if line["outcome"] != "passed" or test not in module.outcomes:
            module.outcomes[test] = line["outcome"]
        if line["outcome"] == "failed" and module.first_failure is None:
            module.first_failure = f"{test.partition('::')[2] or 'import'}: {line['reason']}"
        if line["kind"] == "teardown":
            module.ended.add(test)

    def of(self, test: str) -> Module:
        return self.by_name.setdefault(test.partition("::")[0], Module())


def row_of(name: str, module: Module) -> Row:
    """How the tests of a module went."""
    counts = {f"tests_{outcome}": module.count(outcome) for outcome in ("passed", "failed", "skipped")}
    return {"module": name, **counts, "seconds": round(module.seconds, 1), "first_failure": module.first_failure}
