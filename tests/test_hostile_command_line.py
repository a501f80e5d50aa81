"""Words, numbers, pipes and signals that a command may meet: one message and its exit code, never a traceback."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import widedraft
from distill import process as interrupts
from distill.process import end_on_sigterm, report_user_errors

ROOT = Path(__file__).parents[1]
PAIR = ("--target", "a", "--draft", "b")


@pytest.mark.parametrize("word", ["a\0b", "b\udcff.yaml", "x" * 5000])
@pytest.mark.parametrize(
    "words",
    [
        ("check", "WORD"),
        ("check", "r.yaml", "run_dir=WORD"),
        ("check", "r.yaml", "target.path=WORD"),
        ("check", "r.yaml", "architecture.source=WORD"),
        ("check", "r.yaml", "architecture.plan=WORD"),
        ("check", "r.yaml", "data.prompts=[{path: WORD}]"),
        ("recipes", "WORD"),
        ("recipes", "quickstart", "--to", "WORD"),
        ("recipes", "--shapes", "WORD"),
        ("import", "WORD", "--to", "out"),
        ("export", "WORD", "--to", "out", "--form", "whole"),
        ("report", "WORD"),
        ("eval", "--target", "WORD", "--draft", "b", "--prompts", "gsm8k"),
        ("eval", "--recorded", "WORD", "--draft", "b"),
        ("eval", "r.yaml", "run_dir=WORD", "--checkpoints"),
        ("benchmark", "--target", "a", "--grid", "--out", "WORD"),
        ("verify", *PAIR, "--prompts", "WORD"),
        ("verify", *PAIR, "--accuracy", "gsm8k=WORD"),
    ],
    ids=" ".join,
)
def test_a_path_that_cannot_be_is_named(words, word, tmp_path, monkeypatch, capsys, tiny_target):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n' * 70, encoding="utf-8")
    (tmp_path / "r.yaml").write_text(
        f"run_name: demo\ntarget: {{path: {tiny_target}}}\narchitecture: {{layers: 2, method: first_last}}\n"
        "data: {prompts: [{path: p.jsonl}]}\n",
        encoding="utf-8",
    )
    assert widedraft.main([each.replace("WORD", word) for each in words]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_reader_that_leaves_ends_the_command_quietly():
    """As `widedraft recipes --tasks | head -1`: exit code 141, which a shell has of any program ended by SIGPIPE."""
    reading, writing = os.pipe()
    os.close(reading)
    completed = subprocess.run(
        [sys.executable, "-m", "widedraft", "recipes", "--tasks"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    os.close(writing)
    assert (completed.returncode, completed.stderr) == (141, "")


@pytest.mark.parametrize("during", ["while heavy modules are imported", "before a command", "after a command"])
def test_ctrl_c_outside_a_command_ends_in_one_line(during, tmp_path):
    """A module of ours whose import takes a while stands for torch's; it would swallow an exception, as C++ does.

    A signal that comes between Python's last look for one and the system's sleep is seen when that has ended.
    """
    wait = "for _ in range(1200): time.sleep(0.05)\n"
    slow = f"import time\nprint('now', flush=True)\ntry:\n  {wait}except KeyboardInterrupt: print('lost')\n"
    (tmp_path / "slow.py").write_text(slow, encoding="utf-8")
    programs = {
        "while heavy modules are imported": (
            "from distill.process import catching_interrupts\nwith catching_interrupts():\n    import slow\n"
        ),
        "before a command": "import slow\n",
        "after a command": (
            "from distill.process import report_user_errors\nreport_user_errors(lambda: None)\n"
            f"print('now', flush=True)\nimport time\n{wait}"
        ),
    }
    program = f"from distill.process import take_interrupts\ntake_interrupts()\n{programs[during]}"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=30)
    assert (out, said, process.returncode) == ("", "\nInterrupted. Run the same command again to continue.\n", 130)


def test_ctrl_c_as_python_ends_kills_no_process_that_has_done_its_work(tmp_path):
    """An object that is only let go of while the interpreter ends sends the signal from there."""
    program = (
        "from distill.process import take_interrupts\ntake_interrupts()\n"
        "import os, signal, sys\n"
        "class Late:\n"
        "    def __init__(self):\n        self.kill, self.of, self.number = os.kill, os.getpid(), signal.SIGINT\n"
        "    def __del__(self):\n        self.kill(self.of, self.number)\n"
        "sys.late = Late()\nprint('done')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_command_catches_ctrl_c_itself_and_a_process_that_ignores_it_stays_so(monkeypatch):
    monkeypatch.setattr(interrupts.Process, "is_ours", False)
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        interrupts.take_interrupts()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupts.take_interrupts()
        assert signal.getsignal(signal.SIGINT) is interrupts.interrupt
        assert report_user_errors(lambda: os.kill(os.getpid(), signal.SIGINT)) == 130
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_process_of_a_command_leaves_the_message_to_it(monkeypatch, capfd):
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(interrupts.Process, "is_ours", False)
    monkeypatch.setattr(interrupts.Process, "is_child", False)
    monkeypatch.setenv(interrupts.OWNED_VARIABLE, "/run")
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupts.take_interrupts()
        assert report_user_errors(lambda: os.kill(os.getpid(), signal.SIGINT)) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capfd.readouterr().err == ""


def test_a_launcher_that_is_interrupted_too_does_not_change_what_is_said(monkeypatch, capfd):
    """It sends SIGTERM to processes that are on their way out of Ctrl-C."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(interrupts.Process, "is_ours", False)
    monkeypatch.setenv("WORLD_SIZE", "2")

    def command():
        signal.signal(signal.SIGTERM, end_on_sigterm)
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupts.take_interrupts()
        assert report_user_errors(command) == 130
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert capfd.readouterr().err == f"{interrupts.INTERRUPTED}\n"
