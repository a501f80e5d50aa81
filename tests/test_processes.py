"""Forked programs are processes: their words, environment, folder, pipes, signals and exit codes."""

import os
import signal
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


def test_it_can_be_interrupted_waited_for_and_killed_with_its_group():
    lines = ["import time", "try:", "    print('here')", "    time.sleep(60)"]
    loop = "\n".join([*lines, "except KeyboardInterrupt:", "    print('on')", "    time.sleep(60)"])
    with Warm([*PYTHON, loop], stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "on\n"
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL


def test_nothing_of_the_tests_reaches_it_and_modules_run_as_themselves(monkeypatch, warm):
    monkeypatch.setattr(widedraft, "main", None)
    words = [sys.executable, "-m", "widedraft", "recipes", "--tasks"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "gsm8k" in done.stdout
