"""The command line: stages, exit codes, messages, signals, hostile words, and how fast it responds."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import widedraft
from architectures.errors import UserError
from distill import pipeline, process
from distill.process import Process, end_on_sigterm, interrupt, report_user_errors, signals_kept

ROOT = Path(__file__).parents[1]
RECIPE = """\
run_name: demo
target: {path: TARGET}
architecture: {layers: 2, method: first_last}
data: {prompts: [{path: prompts.jsonl}], num_eval_prompts: 2}
"""
HEAVY = ("torch", "transformers", "composer", "datasets", "scipy", "numpy")


@pytest.fixture
def recipe(tmp_path, tiny_target, monkeypatch):
    """The name of a recipe in the working folder."""
    monkeypatch.chdir(tmp_path)
    Path("demo.yaml").write_text(RECIPE.replace("TARGET", str(tiny_target)), encoding="utf-8")
    rows = "\n".join(json.dumps({"prompt": f"Count to {n}."}) for n in range(10))
    Path("prompts.jsonl").write_text(rows, encoding="utf-8")
    return "demo.yaml"


def test_check_imports_nothing_heavy(recipe):
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import widedraft; code = widedraft.main(sys.argv[1:]);"
        f"sys.exit(code or ' '.join(name for name in {HEAVY!r} if name in sys.modules) or 0)"
    )
    rows_apart = ["data.prompts=[]", "data.self_written_prompts=80"]  # rows are rendered by transformers
    elsewhere = "target.path=meta-llama/Llama-2-7b-hf"  # the headers of local weights are read by torch's users
    command = [sys.executable, "-c", program, "check", recipe, *rows_apart, elsewhere]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stderr) == (0, "")
    assert "2 layers" in completed.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "a.yaml", "--fast"], "unrecognized arguments: --fast"),
        (["--vers"], "required: COMMAND"),  # an option has one name, its whole one
        (["import", "a.gguf", "--t", "x"], "required: --to"),
    ],
)
def test_wrong_usage_exits_with_2(words, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        widedraft.main(words)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_profile_reaches_the_processes_of_a_training(recipe, tmp_path, monkeypatch, capsys):
    seen, folder = [], tmp_path / "made" / "p"
    monkeypatch.setattr(pipeline, "distill_stage", lambda run, *options: seen.append((run.training_words, *options)))
    assert widedraft.main(["distill", recipe, "seed=5", "--profile", str(folder)]) == 0
    assert seen == [((recipe, "seed=5"), f"--profile={folder}")]
    assert folder.is_dir()
    (tmp_path / "x").write_text("")
    assert widedraft.main(["distill", recipe, "--profile", str(tmp_path / "x")]) == 2
    assert f"--profile {tmp_path / 'x'}" in capsys.readouterr().err
    assert len(seen) == 1


@pytest.mark.parametrize("words", [["prune"], ["generate"], ["export"], ["eval"], ["cache"], ["cache", "--verify"]])
def test_a_stage_gets_the_recipe_with_the_words_of_the_command_line(words, recipe, monkeypatch):
    seen, stage = [], "verify_cache" if "--verify" in words else words[0]
    monkeypatch.setattr(pipeline, f"{stage}_stage", lambda run, *_: seen.append(run))
    monkeypatch.setattr(pipeline, "print_scores", lambda _run: None)
    assert widedraft.main([*words, recipe, "seed=5"]) == 0
    assert [(run.recipe.run_name, run.recipe.seed) for run in seen] == [("demo", 5)]


def raising(error: BaseException):
    def command() -> None:
        raise error

    return command


def test_exit_codes_of_a_command(capsys):
    assert report_user_errors(lambda: None) == 0
    assert report_user_errors(raising(UserError("a.yaml:1: mend this."))) == 2
    assert report_user_errors(raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "a.yaml:1: mend this.\n\nInterrupted. Run the same command again to continue.\n"


def test_our_own_errors_keep_their_traceback():
    for error in (ValueError("x"), RuntimeError("CUDA error"), OSError(errno.ENOENT, "No such file", "x")):
        with pytest.raises(type(error)):
            report_user_errors(raising(error))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_full_disk_is_for_the_user_to_mend(number, capsys):
    assert report_user_errors(raising(OSError(number, "Reason", "runs/x/weights"))) == 2
    assert capsys.readouterr().err.startswith("runs/x/weights: Reason.")


@pytest.mark.parametrize(
    "said",
    [
        "[pair.cc:534] Connection closed by peer [127.0.0.1]:9",
        "NCCL error\nncclRemoteError: A call failed",
        "[unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete",
    ],
)
def test_a_process_that_lost_another_says_so_without_a_traceback(said, capsys, monkeypatch):
    monkeypatch.setattr(process.signal, "signal", lambda *_: None)
    assert report_user_errors(raising(RuntimeError(said))) == 1
    first = said.splitlines()[0]
    assert capsys.readouterr().err.count(f"({first})") == 1


LOSE_ANOTHER = """
import os, signal, sys
from distill.process import end_on_sigterm, report_user_errors

def terminate():
    os.kill(os.getpid(), signal.SIGTERM)

def lose():
    raise RuntimeError("Connection closed by peer")

signal.signal(signal.SIGTERM, end_on_sigterm)
code = report_user_errors({"connection": lose, "launcher": terminate}[sys.argv[1]])
terminate()
sys.exit(code)
"""


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(("noticed_by", "code"), [("connection", 1), ("launcher", 128 + signal.SIGTERM)])
def test_a_lost_process_is_said_once_whoever_notices_it_first(noticed_by, code):
    """The launcher's SIGTERM comes on the way out of what the connection said, or a second time."""
    completed = subprocess.run(
        [sys.executable, "-c", f"import atexit; atexit.register(lambda: terminate())\n{LOSE_ANOTHER}", noticed_by],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert len(completed.stderr.splitlines()) == 1
    assert completed.returncode == code


def test_other_ranks_wait_for_the_first_and_speak_only_if_left_alone(monkeypatch, capsys):
    slept = []
    monkeypatch.setattr(process.time, "sleep", lambda wait_s: slept.append((wait_s, capsys.readouterr().err)))
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert report_user_errors(raising(UserError("mine alone"))) == 2
    assert slept == [(process.WAIT_FOR_RANK_0_S, "")]
    assert capsys.readouterr().err == "mine alone\n"
    assert report_user_errors(raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert report_user_errors(raising(UserError("first"))) == 2
    assert len(slept) == 1


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
    monkeypatch.setattr(process.Process, "is_ours", False)
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        process.take_interrupts()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        signal.signal(signal.SIGINT, signal.default_int_handler)
        process.take_interrupts()
        assert signal.getsignal(signal.SIGINT) is process.interrupt
        assert report_user_errors(lambda: os.kill(os.getpid(), signal.SIGINT)) == 130
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_process_of_a_command_leaves_the_message_to_it(monkeypatch, capfd):
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(process.Process, "is_ours", False)
    monkeypatch.setattr(process.Process, "is_child", False)
    monkeypatch.setenv(process.OWNED_VARIABLE, "/run")
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        process.take_interrupts()
        assert report_user_errors(lambda: os.kill(os.getpid(), signal.SIGINT)) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capfd.readouterr().err == ""


def test_a_launcher_that_is_interrupted_too_does_not_change_what_is_said(monkeypatch, capfd):
    """It sends SIGTERM to processes that are on their way out of Ctrl-C."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(process.Process, "is_ours", False)
    monkeypatch.setenv("WORLD_SIZE", "2")

    def command():
        signal.signal(signal.SIGTERM, end_on_sigterm)
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        process.take_interrupts()
        assert report_user_errors(command) == 130
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert capfd.readouterr().err == f"{process.INTERRUPTED}\n"


@pytest.mark.parametrize("ours", [True, False])
def test_signals_are_answered_behind_an_import_as_before_it(monkeypatch, ours):
    """The cache's stage imports Composer, which answers SIGTERM as a training does; other stages come behind it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(Process, "is_ours", ours)

    def own(*_: object) -> None: ...

    try:
        signal.signal(signal.SIGTERM, own)
        with signals_kept():
            for number in before:
                signal.signal(number, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is own
        assert signal.getsignal(signal.SIGINT) is (interrupt if ours else signal.default_int_handler)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
