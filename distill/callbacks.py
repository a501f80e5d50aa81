"""Callbacks of a trainer: gradient norms, times of each step, intervals of metrics, a profile of one step."""

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from composer import Algorithm, Callback, Event, Logger, State
from composer.utils import dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.profiler import record_function

from architectures.errors import UserError
from distill.checkpoints.files import find_checkpoints
from distill.metrics import estimates
from eval.profiling import Recording

PHASES = ("data", "teacher", "student", "optimiser", "save", "evaluation", "other")
ROLLOUTS = "rollouts"  # one more phase, if the student samples responses while it trains
IDLE = "other"
PHASE_OF_EVENT = {
    Event.BEFORE_DATALOADER: "data",
    Event.AFTER_DATALOADER: "student",
    Event.AFTER_TRAIN_BATCH: "optimiser",
    Event.BATCH_CHECKPOINT: "save",
    Event.EPOCH_CHECKPOINT: "save",
    Event.EVAL_START: "evaluation",
    Event.EVAL_END: IDLE,
}

WARM_STEPS = 3  # before the profiled step; in the last of them the profiler warms up
PART_OF_EVENT = {
    Event.AFTER_DATALOADER: None,
    Event.BEFORE_FORWARD: "student forward",
    Event.AFTER_FORWARD: None,
    Event.BEFORE_BACKWARD: "backward",
    Event.AFTER_BACKWARD: None,
    Event.AFTER_TRAIN_BATCH: "optimiser",
}


class EvaluationIntervals(Callback):
    """Logs both ends of the interval of every evaluation metric that has one, as `<metric>/low` and `<metric>/high`."""

    def eval_end(self, state: State, logger: Logger) -> None:
        """The metrics have been computed."""
        bounds: dict[str, float] = {}
        for label, metrics in state.eval_metrics.items():
            for name, estimate in estimates(metrics).items():
                if estimate.interval is not None:
                    low, high = estimate.interval
                    bounds |= {f"metrics/{label}/{name}/low": low, f"metrics/{label}/{name}/high": high}
        logger.log_metrics(bounds)


class GradientNorm(Algorithm):
    """Logs and clips the norm of all gradients of a batch; stops the training run if it is not finite.

    Composer's GradientClipping looks for FSDP1 modules in a sharded model, so it leaves those of FSDP2 unclipped;
    torch's functions handle whole and sharded gradients. A step with a gradient that is not finite would make every
    weight so, and the next checkpoint useless.

    Args:
        checkpoints: Directory of the checkpoints, for the message.
        threshold: Maximum norm, beyond which gradients are scaled down; None for no clipping.
        parameters: Whose gradients count; the model's if left out.
        passes_over: Whether a step that is not finite is skipped with a message, as online training does.
    """

    def __init__(
        self,
        checkpoints: Path,
        threshold: float | None,
        parameters: Callable[[State], Iterable[nn.Parameter]] | None = None,
        *,
        passes_over: bool = False,
    ):
        self.checkpoints, self.threshold, self.passes_over = checkpoints, threshold, passes_over
        self.parameters = parameters or (lambda state: state.model.parameters())

    def match(self, event: Event, state: State) -> bool:  # noqa: ARG002  # Composer's signature
        """After the gradients of all micro-batches are there."""
        return event == Event.AFTER_TRAIN_BATCH

    def apply(self, event: Event, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Raises UserError on all processes if the norm is not finite and such steps are not skipped."""
        parameters = [parameter for parameter in self.parameters(state) if parameter.grad is not None]
        norm = total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        if torch.isfinite(norm):
            logger.log_metrics({"l2_norm/grad/global": float(norm)})
            if self.threshold is not None:
                nn.utils.clip_grads_with_norm_(parameters, self.threshold, norm)
            return
        batch = state.timestamp.batch.value
        if not self.passes_over:
            usable = find_checkpoints(self.checkpoints)
            earlier = f"{usable[-1]} stays usable" if usable else "there is no checkpoint yet"
            raise UserError(
                f"The gradients of batch {batch} have norm {float(norm)}; nothing was learned from it, and {earlier}. "
                "The same command would stop here again: lower the learning rate, clip gradients, or use precision "
                "fp32, and train under another run_name."
            )
        for parameter in parameters:
            parameter.grad = None
        if dist.get_global_rank() == 0:
            print(f"batch {batch}: skipped, its gradients have norm {float(norm)}", file=sys.stderr)


def total_norm(gradients: Iterable[Tensor]) -> Tensor:
    """Euclidean norm of all gradients together, over all their shards; scalar."""
    norm = nn.utils.get_total_norm(list(gradients))
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


class PhaseClock:
    """Adds up the seconds of each phase. A phase lasts until the next one begins, so phases leave no gap.

    On a GPU, which works behind the host, the ends of a phase are CUDA events: its time is that of the device.

    Args:
        on_gpu: Whether the work that counts is that of the current CUDA device.
    """

    def __init__(self, *, on_gpu: bool):
        self.on_gpu = on_gpu
        self.current = IDLE
        self.label: Callable[[str], AbstractContextManager[Any]] = nullcontext  # names a part in a profiler's trace
        self.marks = [(IDLE, self.mark())]

    def mark(self) -> Any:
        """A point in time: seconds, or a CUDA event."""
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
    """Between two marks of one clock."""
    if isinstance(start, float):
        return end - start
    end.synchronize()
    return start.elapsed_time(end) / 1000


class StepTimes(Callback):
    """Logs `step/<phase>_s` for every batch: the seconds since the batch before, split into PHASES, and ROLLOUTS.

    `student` is the student's forward and backward pass, the loss and the clipping of gradients; `save` and
    `evaluation` are those that followed the batch before. The model names the teacher's part itself, on the same clock.
    Must come before the callback that writes checkpoints.
    """

    def __init__(self, clock: PhaseClock):
        self.clock = clock

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        """Name the phase that begins with an event."""
        if event in PHASE_OF_EVENT:
            self.clock.switch(PHASE_OF_EVENT[event])
        super().run_event(event, state, logger)

    def fit_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        """Begin to measure."""
        self.clock.lap()

    def batch_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Log how long everything took since the batch before."""
        self.clock.switch(IDLE)
        seconds = self.clock.lap()
        phases = [*PHASES, *([ROLLOUTS] if ROLLOUTS in seconds else [])]
        logger.log_metrics({f"step/{phase}_s": seconds.get(phase, 0.0) for phase in phases})


class StepProfile(Callback):
    """Records the fourth step of this session with torch's profiler, and writes trace and table as `step`.

    Composer's own profiler names no parts of a step and hands its files to every logger.

    Args:
        folder: That takes the files.
        clock: By which the model names its parts; none if left out.
    """

    def __init__(self, folder: Path, clock: PhaseClock | None = None):
        self.folder, self.clock = folder, clock
        self.recording: Recording | None = None
        self.part: Any = None  # the label that is open
        self.steps = 0  # trained in this session

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        """Name the part that begins with an event."""
        if event in PART_OF_EVENT:
            self.enter(PART_OF_EVENT[event])
        super().run_event(event, state, logger)

    def before_dataloader(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        """A step begins, unless the epoch turns out to have no more."""
        length = state.dataloader_len
        if length is not None and state.timestamp.batch_in_epoch >= length:
            return
        if self.recording is None and self.steps == WARM_STEPS - 1:
            self.recording = Recording(torch.device("cuda" if state.device.name == "gpu" else "cpu"))
            self.recording.start()
        elif self.recording is not None:
            self.recording.step()
            if self.clock is not None:
                self.clock.label = record_function
        self.enter("data")

    def batch_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Write the files after the recorded step."""
        self.enter(None)
        if self.recording is not None and self.steps == WARM_STEPS:
            recording = self.recording
            recording.step()
            self.stop()
            recording.write(self.folder, "step")
            print(f"{self.folder}: the step of batch {state.timestamp.batch.value}", file=sys.stderr)
        self.steps += 1

    def close(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Report if training ended before there was a step to record, also after an error. Composer closes twice."""
        if 0 <= self.steps <= WARM_STEPS:
            self.enter(None)
            self.stop()
            needs = f"step {WARM_STEPS + 1} is recorded"
            print(f"{self.folder}: no profile: this session trained {self.steps} steps, {needs}", file=sys.stderr)
        self.steps = -1

    def stop(self) -> None:
        """Record nothing more, and name no more parts."""
        if self.clock is not None:
            self.clock.label = nullcontext
        if self.recording is not None:
            self.recording.stop()
            self.recording = None

    def enter(self, part: str | None) -> None:
        """End the part that is open, and begin another of the recorded step."""
        if self.part is not None:
            self.part.__exit__(None, None, None)
            self.part = None
        if part is not None and self.recording is not None and self.steps == WARM_STEPS:
            self.part = record_function(part)
            self.part.__enter__()


def profiled_steps(folder: Path | None, clock: PhaseClock | None = None) -> list[Callback]:
    """The callback that records a step, on rank 0, since all ranks do the same work; none if no directory is named."""
    return [] if folder is None or dist.get_global_rank() != 0 else [StepProfile(folder, clock)]
