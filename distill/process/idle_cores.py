"""A process that runs where no other wants to."""

import os
import sys
from pathlib import Path


def yield_cores() -> None:
    """From now on the threads of this process run on cores that would be idle else.

    Linux gives a thread of the policy SCHED_IDLE a core that nobody else wants, and takes it back at once. Processes
    that were started before keep their own policy; those that are started later inherit this one.
    """
    if not hasattr(os, "SCHED_IDLE"):
        print("This system knows no SCHED_IDLE: what runs beside takes turns with this process.", file=sys.stderr)
        return
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))
