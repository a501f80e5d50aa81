"""The tests marked gpu, run by pytest in processes that share the GPU: a row for each module."""

import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.gpu.stage import Row, Setting, SkippedError

ROOT = Path(__file__).parents[2]
MODULES = (  # all that have such tests, the longest and most valuable first; a test looks for others
    "tests/distill/test_distributed.py",
    "tests/distill/test_on_a_device.py",
    "tests/eval/targets/test_layers.py",
    "tests/eval/decoding/test_fixed_steps.py",
    "tests/eval/decoding/test_on_a_device.py",
    "tests/distill/losses/test_chunked.py",
    "tests/distill/test_learned_masks.py",
    "tests/distill/stages/test_pruning.py",
    "tests/distill/text/test_training.py",
    "tests/eval/test_latency.py",
    "tests/eval/decoding/test_response_steps.py",
)
MOST_PROCESSES = 10  # each holds half a GiB of the GPU by being there
CORES_OF_A_PROCESS = 1.5
LONGEST_TEST_S = 60
LOG_NAME = "tests.log"  # the output of pytest
OUTCOMES = "PASSED|FAILED|ERROR|SKIPPED"
SUMMARY = re.compile(r"^=+ (?!test session starts).* =+$", flags=re.MULTILINE)  # failures, then the summary
OUTCOME = re.compile(rf"^(?:\[gw\d+\].* ({OUTCOMES}) )?(\S+?)::(.*?)(?: ({OUTCOMES})\b.*)?$")


def rows(setting: Setting) -> Iterator[Row]:
    """Run all of them until the deadline."""
    if setting.device.type != "cuda" or not torch.cuda.is_available():
        raise SkippedError("no CUDA device: every test marked gpu would be skipped")
    processes = max(1, min(MOST_PROCESSES, int(len(os.sched_getaffinity(0)) / CORES_OF_A_PROCESS)))
    words = [*MODULES, "-m", "gpu", "--numprocesses", str(processes), "--dist", "worksteal"]
    # a warning that this machine's versions give and ours do not is no failure of a test
    words += ["-W", "default", f"--timeout={LONGEST_TEST_S}"]
    yield from run_tests(words, setting, cwd=ROOT)


def run_tests(words: Sequence[str], setting: Setting, *, cwd: Path) -> Iterator[Row]:
    """A row of counts for each module; the output of pytest stays in LOG_NAME.

    Raises:
        RuntimeError: After the last row, if a test failed or the deadline passed; with the end of the output.
    """
    log = setting.out / LOG_NAME
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider", "-p", "no:sugar", *words]
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            code = process.wait(max(0.0, setting.left_s))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            process.kill()
            process.wait()
    text = log.read_text(encoding="utf-8")
    for module, outcomes in outcomes_by_module(text).items():
        yield {"module": module, **outcomes}
    if code != 0:
        ended = "cut off at the deadline" if code is None else f"pytest ended with code {code}"
        raise RuntimeError(f"{ended}; {' '.join(text.split()[-30:])}")


def outcomes_by_module(text: str) -> dict[str, Counter[str]]:
    """Tests that passed, failed or were skipped, counted in the verbose output of pytest, with or without xdist.

    An error while a test is set up or cleaned up counts as failed.
    """
    outcomes = {}
    for line in SUMMARY.split(text)[0].splitlines():
        if (match := OUTCOME.match(line)) and (outcome := match[1] or match[4]):
            outcomes[match[2], match[3].strip()] = outcome.lower().replace("error", "failed")
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for (module, _), outcome in outcomes.items():
        found[module][f"tests_{outcome}"] += 1
    return found
