"""One mutant tried: a copy of the repository with its file broken, and pytest in a fork that has loaded torch."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import defaultdict
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.mutants.areas import ROOT
from benchmarks.mutants.mutant import Mutant

OURS = ("architectures", "eval", "distill", "widedraft", "tests", "conftest")
LOADED_FIRST = ("torch", "transformers", "composer", "composer.algorithms", "datasets", "scipy.stats", "hypothesis")
REWRITTEN = "ignore::pytest.PytestAssertRewriteWarning"  # hypothesis is loaded already
MOST_TEST_S = 60  # of one test, twice the longest: a rule that is broken may leave a loop without an end
RUN = ("-q", "-n", "0", "-x", "-W", REWRITTEN, "-p", "no:cacheprovider", f"--timeout={MOST_TEST_S}")
OPTIONS = (*RUN, "-m", "not slow and not gpu and not real")
POLL_S = 0.05
AGES = count(1)  # of broken files: seconds since 1970, each its own


@dataclass(frozen=True)
class Outcome:
    """What the tests said."""

    code: int  # of pytest; -1 where time ran out
    failed: str  # the first test that did
    cpu_s: float
    seconds: dict[str, float]  # CPU of each test file


class Timer:
    """A plugin of pytest: the first test that fails, and how long each file takes."""

    def __init__(self) -> None:
        self.failed, self.seconds, self.since_s = "", defaultdict(float), time.process_time()

    def pytest_runtest_logreport(self, report: Any) -> None:
        now_s = time.process_time()
        self.seconds[report.nodeid.split("::")[0]] += now_s - self.since_s
        self.since_s = now_s
        if report.failed and not self.failed:
            self.failed = report.nodeid


def load_libraries() -> None:
    """What takes seconds to import, and nothing of ours: forks import that from their copy."""
    for name in LOADED_FIRST:
        __import__(name)
    assert not any(name.split(".")[0] in OURS for name in sys.modules)


def make_copy(folder: Path) -> Path:
    """The working tree as it stands, with its history: some tests ask for the commit."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, folder], check=True)
    listed = ["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def try_mutant(mutant: Mutant, tests: list[str], copy: Path, *, most_s: float) -> Outcome:
    """Break the file, run the tests until one fails, mend the file."""
    file = copy / mutant.file
    text, times = file.read_text(encoding="utf-8"), file.stat()
    file.write_text(mutant.source(text), encoding="utf-8")
    os.utime(file, (next(AGES), next(AGES)))  # or what is compiled of one would be taken for another as long
    try:
        return run_tests(tests, copy, most_s=most_s)
    finally:
        file.write_text(text, encoding="utf-8")
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # what is compiled of it holds again


def run_tests(tests: list[str], copy: Path, *, most_s: float) -> Outcome:
    """Pytest in a fork; after most_s seconds it is killed with all that it started."""
    scratch = copy.with_name(f"{copy.name}-scratch")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    pid = os.fork()
    if pid == 0:
        in_the_fork(tests, copy, scratch)
    code, cpu_s = wait_for(pid, most_s)
    told = scratch / "outcome.json"
    outcome = json.loads(told.read_text(encoding="utf-8")) if told.is_file() else {"failed": "", "seconds": {}}
    shutil.rmtree(scratch, ignore_errors=True)
    return Outcome(code, outcome["failed"], cpu_s, outcome["seconds"])


def in_the_fork(tests: list[str], copy: Path, scratch: Path) -> None:
    """Never returns."""
    import pytest

    code = 3  # as pytest says of itself
    try:
        os.setsid()
        go_there(copy, scratch)
        timer = Timer()
        code = int(pytest.main([*OPTIONS, f"--basetemp={scratch / 'pytest'}", *tests], plugins=[timer]))
        told = {"failed": timer.failed, "seconds": timer.seconds}
        (scratch / "outcome.json").write_text(json.dumps(told), encoding="utf-8")
    except BaseException:  # whatever it is, the fork must not go on as its parent
        traceback.print_exc()
    finally:
        os._exit(code)


def go_there(copy: Path, scratch: Path) -> None:
    """The copy is what Python imports and where it stands; output goes into a file."""
    os.chdir(copy)
    sys.path.insert(0, str(copy))
    os.environ |= {"PYTHONPATH": str(copy), "TMPDIR": str(scratch)}
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        del sys.modules[name]
    with (scratch / "said.txt").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)


def wait_for(pid: int, most_s: float) -> tuple[int, float]:
    """Exit code, or -1 where it had to be killed; CPU seconds."""
    until_s, in_time = time.monotonic() + most_s, True
    while True:
        done, status, used = os.wait4(pid, os.WNOHANG)
        if done:
            return (os.waitstatus_to_exitcode(status) if in_time else -1), used.ru_utime + used.ru_stime
        if in_time and time.monotonic() > until_s:
            in_time = False
            os.killpg(pid, signal.SIGKILL)
        time.sleep(POLL_S)
