"""Exit codes and Ctrl-C: 0 success, 2 a user error, 130 interrupted; one message for all processes.

A KeyboardInterrupt is for our own code, where it closes logs and stops other processes. While modules are imported it
would be a traceback, and where C++ imports or calls Python it is dropped, becomes an ImportError, or ends in abort();
before a command begins and after it has ended nobody catches it.
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
from types import FrameType

from architectures.errors import UserError
from distill.own_packages import WAIT_FOR_RANK_0_S

INTERRUPTED = "\nInterrupted. Run the same command again to continue."
EXIT_CODE = 128 + signal.SIGINT


class Process:
    """Whether it is ours, so that Ctrl-C may be, and whether a command runs, which catches KeyboardInterrupt."""

    is_ours = False
    runs_command = False


@contextmanager
def catching_interrupts() -> Iterator[None]:
    """While this holds, Ctrl-C outside imports is a KeyboardInterrupt."""
    Process.runs_command = True
    try:
        yield
    finally:
        Process.runs_command = False


def take_interrupts() -> None:
    """Answer SIGINT by `interrupt` from now on, unless this process was started with SIGINT ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        Process.is_ours = True
        restore_interrupts()
        # Python gives signals back to the system as it ends, which would then kill a process that has done its work
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


def restore_interrupts() -> None:
    """Answer SIGINT as before somebody else took it."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt if Process.is_ours else signal.default_int_handler)


@contextmanager
def signals_kept() -> Iterator[None]:
    """Signals are answered behind the block as before it: what it imports may take them, as Composer does."""
    ended_by = signal.getsignal(signal.SIGTERM)
    yield
    restore_interrupts()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, ended_by)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt in a command's own code; elsewhere say so and end this process at once.

    A terminal interrupts a launcher too, which sends SIGTERM to all processes at once: it asks for what is under way.
    """
    if Process.runs_command and not imports(frame):
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            signal.signal(signal.SIGTERM, go_on_ending)
        signal.default_int_handler(number, frame)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"{INTERRUPTED}\n".encode())
    os._exit(EXIT_CODE)


def go_on_ending(number: int, frame: FrameType | None) -> None:
    """What a signal does to a process that is ending; the launcher kills one that does not."""


def imports(frame: FrameType | None) -> bool:
    """Whether a module is being imported."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


# What gloo and NCCL say when a process they talk to is gone, and gloo when it has said nothing for too long.
LOST_PROCESS = re.compile(r"Connection (closed|reset) by peer|ncclRemoteError|Timed out waiting \d+ms for (recv|send)")
FULL_OR_FORBIDDEN = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
UNUSABLE_PATH = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR)
SHOWN_CHARACTERS = 200  # of a path
PIPE_CLOSED = 128 + signal.SIGPIPE  # as a shell has it of any program whose reader is gone
AGAIN = "Run the same command again: it continues from what was finished, and from the newest checkpoint."


class LostProcessError(RuntimeError):
    """Another process of this command is gone."""


def end_on_sigterm(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # a signal handler's signature
    """End this process as SIGTERM asks, after loggers have been closed; say what it means.

    Composer's launcher sends it to all processes of a machine when one of them is gone, and says of the others alone
    that they ended.
    """
    say_lost("Ended from outside (SIGTERM): another process of this command failed, or was killed.")
    sys.exit(128 + signal.SIGTERM)


def say_lost(reason: str) -> None:
    """Say once that another process is lost; SIGTERM changes nothing any more, as this process is ending.

    A lost process is noticed twice: by the connection to it, and by Composer's launcher, whose SIGTERM may come during
    either's way out.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say_once(f"{reason} {AGAIN}")


def report_user_errors(command: Callable[[], None]) -> int:
    """Run a command and return its exit code; say in one message what the user can mend.

    Errors of our own making pass through with their traceback.
    """
    try:
        with catching_interrupts():
            command()
            flush_stdout()
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
        say_lost(f"Another process of this command is gone ({str(error).splitlines()[0]}).")
        return 1
    except KeyboardInterrupt:
        say_once(INTERRUPTED)
        return EXIT_CODE
    return 0


def path_problem(error: OSError) -> str | None:
    """What is wrong with the path that an error of the system names, and what to do; None if it is no such error."""
    path = str(error.filename2 or error.filename or "")
    shown = path if len(path) <= SHOWN_CHARACTERS else f"{path[:SHOWN_CHARACTERS]}..."
    if error.errno in FULL_OR_FORBIDDEN:
        return (
            f"{shown or 'the run folder'}: {error.strerror}. Free or choose another place; the same command continues."
        )
    if error.errno in UNUSABLE_PATH and path:
        return f"{shown}: {error.strerror}. Name another file or folder."
    return None


def flush_stdout() -> None:
    """Write what was printed, so that an error of it is the command's."""
    if sys.stdout is not None:
        sys.stdout.flush()


def stdout_is_closed() -> bool:
    """Whether nobody reads what is printed, as after `| head`; nothing is printed any more then."""
    if sys.stdout is None:
        return False
    poll = select.poll()
    poll.register(sys.stdout, 0)  # a pipe without a reader is an error that is told unasked
    closed = any(event & select.POLLERR for _, event in poll.poll(0))
    if closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the end of Python would complain once more
    return closed


def fail(message: str) -> int:
    """Say what is wrong and return exit code 2.

    Of the processes of one machine that fail together the first speaks. The others wait to be stopped, and speak only
    if they are not: then the mistake is theirs alone.
    """
    if local_rank() != 0:
        time.sleep(WAIT_FOR_RANK_0_S)
    print(message, file=sys.stderr, flush=True)
    return 2


def say_once(message: str) -> None:
    """Print on stderr, from the machine's first process only."""
    if local_rank() == 0:
        print(message, file=sys.stderr, flush=True)


def local_rank() -> int:
    """This process's number on its machine, 0 where nobody launched several."""
    return int(os.environ.get("LOCAL_RANK", "0"))
