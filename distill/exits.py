"""How a command ends: 0 fine, 2 a mistake the user can mend, 130 interrupted; one message for all processes."""

import errno
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

from architectures.errors import UserError

# Composer's launcher looks for a failed process ten times a second and then stops the others.
WAIT_FOR_RANK_0_S = 10
# What gloo and NCCL say when a process they talk to is gone.
LOST_PROCESS = re.compile("Connection (closed|reset) by peer|ncclRemoteError")
FULL_OR_FORBIDDEN = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
FROM_CHECKPOINT = "Run the same command again to continue from the newest checkpoint, if there is one."


def end_on_sigterm(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # a signal handler's signature
    """End this process as SIGTERM asks, after loggers have been closed; say what it means.

    Composer's launcher sends it to all processes of a machine when one of them is gone, and says of the others alone
    that they ended.
    """
    say_lost("Ended from outside (SIGTERM): another process of this training failed, or was killed.")
    sys.exit(128 + signal.SIGTERM)


def say_lost(reason: str) -> None:
    """Say once that another process is lost; SIGTERM changes nothing any more, as this process is ending.

    A lost process is noticed twice: by the connection to it, and by Composer's launcher, whose SIGTERM may come during
    either's way out.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say_once(f"{reason} {FROM_CHECKPOINT}")


def report_user_errors(command: Callable[[], None]) -> int:
    """Run a command and return its exit code; say in one message what the user can mend.

    Errors of our own making pass through with their traceback.
    """
    try:
        command()
    except UserError as error:
        return fail(str(error))
    except OSError as error:
        if error.errno not in FULL_OR_FORBIDDEN:
            raise
        place = error.filename or "the run folder"
        return fail(f"{place}: {error.strerror}. Free or choose another place; the same command continues.")
    except RuntimeError as error:
        if not LOST_PROCESS.search(str(error)):
            raise
        say_lost(f"Another process of this training is gone ({str(error).splitlines()[0]}).")
        return 1
    except KeyboardInterrupt:
        say_once("\nInterrupted. Run the same command again to continue.")
        return 130
    return 0


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
