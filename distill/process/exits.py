"""How a command ends: 0 fine, 2 a mistake the user can mend, 130 interrupted; one message for all processes."""

import errno
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

from architectures.errors import UserError
from distill.process.interrupts import EXIT_CODE, INTERRUPTED, catching_interrupts
from distill.process.own_packages import WAIT_FOR_RANK_0_S

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
