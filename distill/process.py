"""Exit codes and signals: 0 success, 2 user error, 130 interrupted, 143 terminated; one message for all processes.

KeyboardInterrupt is only useful in a command's own code, which closes logs and stops other processes. During imports
it would print a traceback, in C++ code that imports or calls Python it is dropped, becomes an ImportError, or ends in
abort(), and before and after a command nothing catches it.
"""

import atexit
import errno
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import NoReturn

# Composer's launcher polls for failed processes ten times a second, then stops the remaining ones.
WAIT_FOR_RANK_0_S = 10


def reject_foreign_packages() -> None:
    """Exit with code 2 if a file of the working directory shadows one of widedraft's packages.

    `python -m` puts the working directory first on the import path, so an `eval.py` there would be imported as `eval`.
    Local rank 0 prints and exits first; other ranks wait to be stopped, since the launcher's exit code is that of the
    first failure.
    """
    ours = Path(__file__).resolve().parents[1]
    for name in ("architectures", "eval"):
        spec = find_spec(name)
        imported = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
        if imported != ours / name / "__init__.py":
            if os.environ.get("LOCAL_RANK", "0") != "0":
                time.sleep(WAIT_FOR_RANK_0_S)
            print(
                f"{imported}: shadows widedraft's package {name!r} at {ours / name}. "
                "Rename it, start from another directory, or set PYTHONSAFEPATH=1.",
                file=sys.stderr,
                flush=True,
            )
            sys.exit(2)


reject_foreign_packages()  # nothing of these packages is imported before

from architectures.errors import UserError  # noqa: E402

INTERRUPTED = "\nInterrupted. Run the same command again to continue."
EXIT_CODE = 128 + signal.SIGINT
OWNED_VARIABLE = "WIDEDRAFT_OWNED_RUNS"  # directories owned by this process, or by the one that started it


class Process:
    """State of signal handling.

    Attributes:
        is_ours: This package installed the SIGINT handler.
        is_child: Another command started this process, and reports Ctrl-C.
        peers: Process ids of this machine's part of a training run, while it trains.
        is_terminated: SIGTERM was received, and the batch that is being trained is the last.
    """

    is_ours = False
    is_child = False
    runs_command = False
    peers: tuple[int, ...] = ()
    is_terminated = False


@contextmanager
def catching_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt on Ctrl-C outside imports for the duration of the block."""
    Process.runs_command = True
    try:
        yield
    finally:
        Process.runs_command = False


def take_interrupts() -> None:
    """Handle SIGINT with `interrupt` from now on, unless this process was started with SIGINT ignored."""
    Process.is_child = bool(os.environ.get(OWNED_VARIABLE))
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        Process.is_ours = True
        restore_interrupts()
        # Python resets signal handlers at exit; Ctrl-C would then kill a process that has finished its work.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


def restore_interrupts() -> None:
    """Reinstall the SIGINT handler after other code replaced it."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt if Process.is_ours else signal.default_int_handler)


@contextmanager
def signals_kept() -> Iterator[None]:
    """Restore signal handlers after the block, whose imports may replace them, as Composer does."""
    ended_by = signal.getsignal(signal.SIGTERM)
    yield
    restore_interrupts()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, ended_by)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt in a command's own code; elsewhere print a message and exit at once.

    A terminal also interrupts a launcher, which sends SIGTERM to all processes: the exit is already under way then.
    """
    imports = any(each.f_code.co_filename.startswith("<frozen importlib") for each, _ in walk_stack(frame))
    if Process.runs_command and not imports:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.default_int_handler(number, frame)
    if local_rank() == 0 and not Process.is_child:
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"{INTERRUPTED}\n".encode())
    os._exit(EXIT_CODE)


# Messages of gloo and NCCL when a peer is gone, and of gloo when a peer times out.
LOST_PROCESS = re.compile(r"Connection (closed|reset) by peer|ncclRemoteError|Timed out waiting \d+ms for (recv|send)")
FULL_OR_FORBIDDEN = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
UNUSABLE_PATH = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR)
SHOWN_CHARACTERS = 200  # of a path
PIPE_CLOSED = 128 + signal.SIGPIPE  # as shells report any program whose reader is gone
AGAIN = "Run the same command again: it continues from completed stages and the newest checkpoint."


class LostProcessError(RuntimeError):
    """Another process of this command is gone."""


def restore_signals() -> None:
    """Undo what importing Composer did: Ctrl-C is handled as before, and SIGTERM by `end_on_sigterm`."""
    restore_interrupts()
    signal.signal(signal.SIGTERM, end_on_sigterm)


def end_on_sigterm(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # a signal handler's signature
    """Exit on SIGTERM, during training only after the current batch.

    Composer's launcher sends it to all processes of a machine when it receives it itself, and when one of them is
    gone. No batch ends then.
    """
    lost = not all(map(is_running, Process.peers))
    if Process.peers and (Process.is_terminated or not lost):
        Process.is_terminated = True
        return
    several = os.environ.get("WORLD_SIZE", "1") != "1"
    exit_terminated(f": another process of this command {'' if lost else 'may have '}failed" if several else "")


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def exit_terminated(detail: str) -> NoReturn:
    """Exit after SIGTERM: rank 0 in order, with a message; others at once.

    Composer's launcher takes any exit code of theirs for a crash, and prints all their output after the message.
    """
    if os.environ.get("RANK", "0") != "0":
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    report_lost(f"Terminated (SIGTERM){detail}.")
    sys.exit(128 + signal.SIGTERM)


def report_lost(reason: str) -> None:
    """Report once why this process is exiting, and ignore SIGTERM from then on.

    A lost process is noticed twice: by the connection to it, and by Composer's launcher, whose SIGTERM may arrive
    while this process is exiting.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print_once(f"{reason} {AGAIN}")


def report_user_errors(command: Callable[[], None]) -> int:
    """Run a command and return its exit code; print errors that the user can fix in one message.

    Internal errors propagate with their traceback.
    """
    try:
        with catching_interrupts():
            command()
            if sys.stdout is not None:
                sys.stdout.flush()  # an error of it is raised within the command
    except UserError as error:
        return fail(str(error))
    except OSError as error:
        if isinstance(error, BrokenPipeError) and stdout_is_closed():
            return PIPE_CLOSED
        message = path_problem(error)
        if message is None:
            raise
        return fail(message)
    except RuntimeError as error:
        if not isinstance(error, LostProcessError) and not LOST_PROCESS.search(str(error)):
            raise
        report_lost(f"Another process of this command exited ({str(error).splitlines()[0]}).")
        return 1
    except KeyboardInterrupt:
        if not Process.is_child:
            print_once(INTERRUPTED)
        return EXIT_CODE
    return 0


def path_problem(error: OSError) -> str | None:
    """Return the problem of the path in a system error and a hint; None for other errors."""
    path = str(error.filename2 or error.filename or "")
    shown = path if len(path) <= SHOWN_CHARACTERS else f"{path[:SHOWN_CHARACTERS]}..."
    if error.errno in FULL_OR_FORBIDDEN:
        return f"{shown or 'the run directory'}: {error.strerror}. Fix this; the same command continues."
    if error.errno in UNUSABLE_PATH and path:
        return f"{shown}: {error.strerror}. Choose another file or directory."
    return None


def stdout_is_closed() -> bool:
    """Return True if the reader of stdout is gone, as after `| head`; redirect stdout to /dev/null then."""
    if sys.stdout is None:
        return False
    poll = select.poll()
    poll.register(sys.stdout, 0)  # a pipe without a reader is always reported as an error
    closed = any(event & select.POLLERR for _, event in poll.poll(0))
    if closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python would report it again at exit
    return closed


def fail(message: str) -> int:
    """Print an error and return exit code 2.

    If several processes of a machine fail together, only the first prints. The rest wait to be stopped, and print if
    they are not: then the error is only theirs.
    """
    if local_rank() != 0:
        time.sleep(WAIT_FOR_RANK_0_S)
    print(message, file=sys.stderr, flush=True)
    return 2


def print_once(message: str) -> None:
    """Print to stderr, from the machine's first process only."""
    if local_rank() == 0:
        print(message, file=sys.stderr, flush=True)


def local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))
