"""Where the time of a training goes: seconds by phase, and a line on stderr when nothing happens for a minute.

A phase lasts until the next one is named, so phases leave no gap and their seconds add up to the time that passed.
"""

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

IDLE = "other"
SILENCE_S = 60.0


class PhaseClock:
    """Adds up the seconds of each phase.

    A processor's work is done when a call returns, so phases end when the next is named. A GPU works behind the host:
    there a phase's ends are marks in the device's own queue, and a phase is the time the device, not the host, spent
    in it; waiting for data that was ready before the device was counts as nothing.

    Args:
        on_gpu: Whether the work that counts is that of the current CUDA device.
    """

    def __init__(self, *, on_gpu: bool):
        self.on_gpu = on_gpu
        self.current = IDLE
        self.label: Callable[[str], AbstractContextManager[Any]] = nullcontext  # names a part in a profiler's trace
        self.marks = [(IDLE, self.mark())]

    def mark(self) -> Any:
        """A point in time, on the clock that counts: seconds, or a CUDA event."""
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream())
        return event

    def switch(self, phase: str) -> None:
        """End the running phase and begin another."""
        self.current = phase
        self.marks.append((phase, self.mark()))

    @contextmanager
    def phase(self, phase: str) -> Iterator[None]:
        """A phase within another, which goes on afterwards."""
        outer = self.current
        self.switch(phase)
        try:
            with self.label(phase):
                yield
        finally:
            self.switch(outer)

    def lap(self) -> dict[str, float]:
        """Seconds of every phase since the last call; waits for a GPU to be done with them."""
        self.switch(self.current)
        seconds: dict[str, float] = defaultdict(float)
        for (phase, start), (_, end) in zip(self.marks, self.marks[1:], strict=False):
            seconds[phase] += seconds_between(start, end)
        self.marks = self.marks[-1:]
        return dict(seconds)


def seconds_between(start: Any, end: Any) -> float:
    """Of two marks of one clock."""
    if isinstance(start, float):
        return end - start
    end.synchronize()
    return start.elapsed_time(end) / 1000


class Watchdog:
    """Says on stderr, once a minute, that nothing happens and what was happening last.

    Args:
        describe: What is going on, in a few words; called from another thread.
        silence_s: Seconds without a beat before the first line, and between lines.
    """

    def __init__(self, describe: Callable[[], str], *, silence_s: float = SILENCE_S):
        self.describe = describe
        self.silence_s = silence_s
        self.last_beat_s = time.monotonic()
        self.beats = threading.Event()
        self.stopped = False
        self.thread = threading.Thread(target=self.watch, name="watchdog", daemon=True)

    def start(self) -> None:
        self.beat()
        self.thread.start()

    def beat(self) -> None:
        self.last_beat_s = time.monotonic()
        self.beats.set()

    def stop(self) -> None:
        """Be silent from now on."""
        self.stopped = True
        self.beats.set()
        if self.thread.is_alive():
            self.thread.join()

    def watch(self) -> None:
        """Speak after every silence, until stopped."""
        while not self.stopped:
            if not self.beats.wait(self.silence_s):
                silent_s = time.monotonic() - self.last_beat_s
                print(f"nothing finished for {silent_s:.0f} s: {self.describe()}", file=sys.stderr, flush=True)
            self.beats.clear()
