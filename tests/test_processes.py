"""Forked programs are processes: their words, environment, folder, pipes and exit codes."""

import subprocess
import sys

import pytest

import widedraft
from tests.processes import Warm

PYTHON = (sys.executable, "-c")


@pytest.mark.parametrize("start", [subprocess.Popen, Warm])
@pytest.mark.parametrize(
    ("code", "expected", "said"),
    [
        ("import sys; print(sys.argv)", 0, ("['-c', 'x']\n", "")),
        ("import sys; sys.exit(3)", 3, ("", "")),
        ("import sys; sys.exit('because')", 1, ("", "because\n")),
        ("import atexit; atexit.register(print, 'at the exit')", 0, ("at the exit\n", "")),
        ("import os, sys; sys.stdout.write(os.getcwd()); os.kill(os.getpid(), 15)", -15, ("", "")),
        ("import threading; threading.Timer(0.1, print, ['late']).start()", 0, ("late\n", "")),
        ("import os; print(os.environ['TOLD'], 'PYTEST_CURRENT_TEST' in os.environ)", 0, ("x False\n", "")),
        ("import warnings; warnings.warn('x', DeprecationWarning, 2)", 0, ("", "")),
        ("print(__name__, input())", 0, ("__main__ asked\n", "")),
    ],
)
def test_it_ends_as_a_started_one_does(start, code, expected, said, tmp_path):
    with start(
        [*PYTHON, code, "x"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={"TOLD": "x"},
    ) as process:
        found = process.communicate("asked\n", timeout=60)
    assert process.returncode == expected
    assert found == said


def test_nothing_of_the_tests_reaches_it_and_modules_run_as_themselves(monkeypatch, warm):
    monkeypatch.setattr(widedraft, "main", None)
    words = [sys.executable, "-m", "widedraft", "recipes", "--tasks"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "gsm8k" in done.stdout
