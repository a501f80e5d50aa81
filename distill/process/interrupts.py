"""Ctrl-C from the first import to the end of the process: exit code 130 and one line. Imports next to nothing.

A KeyboardInterrupt is for our own code, where it closes logs and stops other processes. While modules are imported it
would be a traceback, and where C++ imports or calls Python it is dropped, becomes an ImportError, or ends in abort();
before a command begins and after it has ended nobody catches it.
"""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

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
