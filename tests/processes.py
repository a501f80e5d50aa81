"""Processes without their imports: Python programs forked from one that has imported what the tests have.

`Warm` stands where subprocess.Popen does: own words, environment, folder, pipes, signals and exit code. What it does
not repeat is the start of the interpreter and the imports of torch, transformers and Composer: ten seconds of a core.
What a start itself does, and what an import finds, is tested by processes that are started.
"""

import atexit
import json
import logging
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
import warnings
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest

MOST_BYTES = 2**18  # of one request: words and environment
SIGNALS = (signal.SIGALRM, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
OF_PYTHON = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)  # are not shown by default


class Parent:
    """The process that others are forked from; it is itself forked before the first test, which may leave threads."""

    asking: socket.socket | None = None

    @classmethod
    def start(cls) -> None:
        cls.end()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():  # CUDA does not work in forks of a process that has used it
            return
        cls.asking, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (cls.asking, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_BYTES)
        if os.fork() == 0:
            never_return(lambda: serve(theirs.detach()))
        theirs.close()

    @classmethod
    def end(cls) -> None:
        if cls.asking is not None:
            cls.asking.close()
            cls.asking = None


class Warm(subprocess.Popen):
    """A Python program in a process of its own that need not import what the tests have; other programs as ever."""

    def _execute_child(self, args: Any, executable: Any, *rest: Any) -> None:
        words = [os.fspath(word) for word in args]
        if Parent.asking is None or not is_plain(words) or rest[0] is not None:  # preexec_fn
            super()._execute_child(args, executable, *rest)
            return
        told, files, pipes = asked_for(words, rest)
        self.ended, theirs = socket.socketpair()
        socket.send_fds(Parent.asking, [json.dumps(told).encode()], [*files, theirs.fileno()])
        theirs.close()
        self.pid = int(self.ended.recv(32))
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _internal_poll(self, *rest: Any, **more: Any) -> int | None:
        if not hasattr(self, "ended"):
            return super()._internal_poll(*rest, **more)
        if self.returncode is None and select.select([self.ended], [], [], 0)[0]:
            self._take_code()
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if not hasattr(self, "ended"):
            return super()._wait(timeout)
        if self.returncode is None:
            if not select.select([self.ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self._take_code()
        return self.returncode

    def _take_code(self) -> None:
        self.returncode = int(self.ended.recv(32) or b"-9")
        self.ended.close()


def is_plain(words: Sequence[str]) -> bool:
    """Whether it is this Python, at most told to hold back nothing of what it prints."""
    option = words[2 if words[1] == "-u" else 1]
    return words[0] == sys.executable and (option in ("-c", "-m") or not option.startswith("-"))


def asked_for(words: Sequence[str], rest: Sequence[Any]) -> tuple[dict[str, Any], list[int], Sequence[int]]:
    """What a program is told, its three standard files, and the ends of the pipes, from what Popen hands on."""
    _, _, _, cwd, env, _, _, _, *pipes = rest[:14]
    stdin, _, _, stdout, _, stderr = pipes
    environment = dict(os.environ if env is None else env)
    program = words[2 if words[1] == "-u" else 1 :]
    told = {"words": program, "cwd": os.fspath(cwd or Path.cwd()), "env": environment, "session": rest[-2]}
    return told, [own if given == -1 else given for own, given in enumerate((stdin, stdout, stderr))], pipes


def run(
    words: Sequence[str | os.PathLike[str]], *, stdin: str | None = None, check: bool = False, **more: Any
) -> subprocess.CompletedProcess[str]:
    """subprocess.run of a Python program, its output captured as text."""
    pipes = {"stdin": subprocess.PIPE} if stdin is not None else {}
    with Warm(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **pipes, **more) as process:
        out, err = process.communicate(stdin)
    completed = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        assert completed.returncode == 0, err
    return completed


def serve(listening: int) -> None:
    """Fork for each request, until whoever asks has gone."""
    forget_the_tests(keep={listening})
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those that look after a program are waited for by nobody
    asked = socket.socket(fileno=listening)
    while True:
        text, files, _, _ = socket.recv_fds(asked, MOST_BYTES, 4)
        if not text:
            return
        if os.fork() == 0:
            asked.close()
            look_after(json.loads(text), files)
        for file in files:
            os.close(file)


def look_after(told: dict[str, Any], files: list[int]) -> NoReturn:
    """Fork the program, tell its number, and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *standard, ended = files
    pid = os.fork()
    if pid == 0:
        os.close(ended)
        become(told, standard)
    for file in standard:
        os.close(file)
    teller = socket.socket(fileno=ended)
    teller.send(str(pid).encode())
    _, status = os.waitpid(pid, 0)
    with suppress(OSError):  # nobody may be left to be told
        teller.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def become(told: dict[str, Any], files: Sequence[int], passed: Sequence[int] = ()) -> NoReturn:
    """The program that was asked for, here; its own Python programs are forked from here."""
    if told["session"]:
        os.setsid()
    for number, file in enumerate([os.dup(file) for file in files]):
        os.dup2(file, number)
    empty_files(keep={0, 1, 2, *passed})
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    os.environ.clear()
    os.environ |= told["env"]
    os.chdir(told["cwd"])
    subprocess.Popen = Forked
    never_return(lambda: run_words(told["words"]))


class Forked(subprocess.Popen):
    """A Python program forked from this one, which is such a program itself and has hardly begun, as a launcher."""

    def _execute_child(self, args: Any, executable: Any, *rest: Any) -> None:
        words = [os.fspath(word) for word in args]
        if not is_plain(words):
            super()._execute_child(args, executable, *rest)
            return
        told, files, pipes = asked_for(words, rest)
        self.pid = os.fork()
        if self.pid == 0:
            become(told, files, passed=rest[2])
        self._child_created = True
        self._close_pipe_fds(*pipes)


def run_words(words: Sequence[str]) -> None:
    """What `python WORDS` does."""
    option, *rest = words
    added = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:] = [*added, *(folder for folder in sys.path if folder not in added)]
    if any((Path(folder) / "sitecustomize.py").is_file() for folder in added):
        sys.modules.pop("sitecustomize", None)
        __import__("sitecustomize")
    if option == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    elif option == "-m":
        sys.path.insert(0, str(Path.cwd()))
        sys.argv = list(rest)
        sys.modules.pop(rest[0], None)  # it is run anew, as itself
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(option).parent))
        sys.argv = [option, *rest]
        runpy.run_path(option, run_name="__main__")


def never_return(work: Any) -> NoReturn:
    """Do the work and end as Python ends: an exception's traceback and code, threads, handlers at the exit."""
    code = 1
    try:
        try:
            work()
            code = 0
        except SystemExit as end:
            code = exit_code(end.code)
        except KeyboardInterrupt:
            traceback.print_exc()
            code = -signal.SIGINT
        except BaseException:  # whatever it is, a fork must not go on as its parent
            traceback.print_exc()
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
    except SystemExit as end:  # of a handler
        code = exit_code(end.code)
    finally:
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)


def exit_code(told: Any) -> int:
    if told is None or isinstance(told, int):
        return (told or 0) & 0xFF
    print(told, file=sys.stderr)
    return 1


def forget_the_tests(keep: set[int]) -> None:
    """Nothing of pytest is left: its files, handlers, filters of warnings, and what it would do at its end."""
    atexit._clear()
    weakref.finalize._registry.clear()  # pyright: ignore[reportAttributeAccessIssue]
    weakref.finalize._registered_with_atexit = False  # pyright: ignore[reportAttributeAccessIssue]
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    logging.root.handlers.clear()
    warnings.resetwarnings()
    for category in OF_PYTHON:
        warnings.simplefilter("ignore", category)
    empty_files(keep)


def empty_files(keep: set[int]) -> None:
    """No other file of the process that was forked is held; its objects go on to own their numbers."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        with suppress(OSError):  # the folder itself, which was being listed
            if number not in {nothing, *keep} and os.fstat(number):
                os.dup2(nothing, number)


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python programs that this test, or what it calls, starts by subprocess are forked."""
    monkeypatch.setattr(subprocess, "Popen", Warm)
