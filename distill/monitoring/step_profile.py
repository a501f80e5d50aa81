"""A training step under the profiler: its parts named, the steps that warm up outside.

Composer's own profiler names no parts, has a memory timeline for GPUs alone, and hands its files to every logger.
"""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from composer import Callback, Logger, State
from composer.utils import dist
from torch.profiler import record_function

from distill.monitoring.phase_clock import PhaseClock
from eval.profiling import Profile, Recording

WARM_STEPS = 3  # before the one that is recorded; the last of them warms up the profiler
# Teacher and loss are named by the model, within `student forward`, where it asks them.
PARTS = ("data", "student forward", "teacher", "loss", "backward", "optimiser")


class StepProfile(Callback):
    """Records the fourth step of this session, from fetching its batch to its end, and writes it as `step`.

    Changes nothing of what is learned; that step, and the one in which files are written, take longer.

    Args:
        folder: That takes the files.
        clock: By which the model names its parts; none if left out.
    """

    def __init__(self, folder: Path, clock: PhaseClock | None = None):
        self.folder = folder
        self.clock = clock
        self.recording: Recording | None = None
        self.part: Any = None  # the label that is open
        self.steps = 0  # trained in this session
        self.is_closed = False
        self.profile: Profile | None = None

    @property
    def is_recorded(self) -> bool:
        """Whether the present step is the one."""
        return self.recording is not None and self.steps == WARM_STEPS

    def before_dataloader(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        """A step begins, unless the epoch turns out to have no more."""
        if epoch_is_over(state):
            return
        if self.recording is None and self.steps == WARM_STEPS - 1:
            self.recording = Recording(torch.device("cuda" if state.device.name == "gpu" else "cpu"))
            self.recording.start()
        elif self.is_recorded:
            assert self.recording is not None
            self.recording.step()
            if self.clock is not None:
                self.clock.label = record_function
        self.enter("data")

    def after_dataloader(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        self.leave()

    def before_forward(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        self.enter("student forward")

    def after_forward(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        self.leave()

    def before_backward(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        self.enter("backward")

    def after_backward(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        self.leave()

    def after_train_batch(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        self.enter("optimiser")

    def batch_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        self.leave()
        if self.is_recorded:
            recording = self.recording
            assert recording is not None
            recording.step()
            self.stop()
            self.profile = recording.written(self.folder, "step", PARTS)
            names = ", ".join(path.name for path in self.profile.files)
            print(
                f"{self.folder}: {names}: the step of batch {state.timestamp.batch.value}, {self.profile.describe()}",
                file=sys.stderr,
            )
        self.steps += 1

    def close(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Say so if training ended before there was anything to record, also after an error. Composer closes twice."""
        if self.steps <= WARM_STEPS and not self.is_closed:
            self.leave()
            self.stop()
            trained = "1 step" if self.steps == 1 else f"{self.steps} steps"
            print(
                f"{self.folder}: nothing was profiled: this session trained {trained}, and step {WARM_STEPS + 1} is "
                "the one that is recorded.",
                file=sys.stderr,
            )
        self.is_closed = True

    def stop(self) -> None:
        """Record nothing more, and name no more parts."""
        if self.clock is not None:
            self.clock.label = nullcontext
        if self.recording is not None:
            self.recording.stop()
            self.recording = None

    def enter(self, part: str) -> None:
        """Begin a part of the recorded step; one that an error left open ends."""
        self.leave()
        if self.is_recorded:
            self.part = record_function(part)
            self.part.__enter__()

    def leave(self) -> None:
        """End the part that is open, if one is."""
        if self.part is not None:
            self.part.__exit__(None, None, None)
            self.part = None


def profiled_steps(folder: Path | None, clock: PhaseClock | None = None) -> list[Callback]:
    """What records a step, on rank 0: all ranks do the same work. Nothing where no folder is named."""
    return [] if folder is None or dist.get_global_rank() != 0 else [StepProfile(folder, clock)]


def epoch_is_over(state: State) -> bool:
    """Whether the data loader, when asked, will say that it has no more."""
    length = state.dataloader_len
    return length is not None and state.timestamp.batch_in_epoch >= length
