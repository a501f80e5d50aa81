"""How a command ends: 0 fine, 2 a mistake the user can mend, 130 interrupted; one message for all processes."""

import errno
import os
import sys
import time
from collections.abc import Callable

from architectures.errors import UserError

# Composer's launcher looks for a failed process ten times a second and then stops the others.
WAIT_FOR_RANK_0_S = 10
FULL_OR_FORBIDDEN = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)


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
