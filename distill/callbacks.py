"""Callbacks and loggers of a trainer: gradient norms, step times, metric intervals, profiles, console."""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from composer import Algorithm, Callback, Event, Logger, State
from composer.loggers import LoggerDestination, MLFlowLogger, TensorboardLogger, WandBLogger
from composer.utils import create_interval_scheduler, dist
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from architectures.console import duration, time_left
from architectures.errors import UserError
from architectures.files import partial_path, write_text
from distill.checkpoints.checkpoint_files import find_checkpoints
from distill.metrics import estimates
from distill.recipe.sections import DistillConfig, missing_package
from eval.machine import clock_s
from eval.scorecard_tables import interval

OPERATIONS = 30  # in the table


PHASES = ("data", "teacher", "student", "optimiser", "save", "evaluation", "other")
ROLLOUTS = "rollouts"  # additional phase if the student samples responses during training
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

WARM_STEPS = 3  # before the profiled step; the profiler warms up in the last of them
PART_OF_EVENT = {
    Event.AFTER_DATALOADER: None,
    Event.BEFORE_FORWARD: "student forward",
    Event.AFTER_FORWARD: None,
    Event.BEFORE_BACKWARD: "backward",
    Event.AFTER_BACKWARD: None,
    Event.AFTER_TRAIN_BATCH: "optimiser",
}


class EvaluationIntervals(Callback):
    """Logs the intervals of evaluation metrics, as `<metric>/low` and `<metric>/high`."""

    def eval_end(self, state: State, logger: Logger) -> None:
        bounds: dict[str, float] = {}
        for label, metrics in state.eval_metrics.items():
            for name, estimate in estimates(metrics).items():
                if estimate.interval is not None:
                    low, high = estimate.interval
                    bounds |= {f"metrics/{label}/{name}/low": low, f"metrics/{label}/{name}/high": high}
        logger.log_metrics(bounds)


class GradientNorm(Algorithm):
    """Logs and clips the global gradient norm of a batch; stops the training run if it is not finite.

    Composer's GradientClipping looks for FSDP1 modules and so leaves FSDP2's unclipped; torch's functions handle
    sharded gradients. A step with a non-finite gradient would make all weights non-finite, and the next checkpoint
    useless.

    Args:
        checkpoints: Directory, for the error message.
        threshold: Maximum norm; None disables clipping.
        parameters: Parameters whose gradients count; by default the model's.
        passes_over: Skip a non-finite step with a message instead of stopping, as online training does.
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
        return event == Event.AFTER_TRAIN_BATCH

    def apply(self, event: Event, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Raises UserError on all processes if the norm is not finite, unless such steps are skipped."""
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
            earlier = f"{usable[-1]} is still usable" if usable else "there is no checkpoint yet"
            raise UserError(
                f"The gradients of batch {batch} have norm {float(norm)}; the weights were not updated, and {earlier}. "
                "The same command would fail again: lower the learning rate, clip gradients, or set precision to "
                "fp32, and train with another run_name."
            )
        for parameter in parameters:
            parameter.grad = None
        if dist.get_global_rank() == 0:
            print(f"batch {batch}: skipped, its gradients have norm {float(norm)}", file=sys.stderr)


def total_norm(gradients: Iterable[Tensor]) -> Tensor:
    """Compute the Euclidean norm over all gradients and shards; scalar."""
    norm = nn.utils.get_total_norm(list(gradients))
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


class PhaseClock:
    """Accumulates the seconds of each phase; a phase lasts until the next begins, so there are no gaps.

    On a GPU, which runs asynchronously, CUDA events mark the ends of a phase, so its time is device time.
    """

    def __init__(self, *, on_gpu: bool):
        self.on_gpu = on_gpu
        self.current = IDLE
        self.label: Callable[[str], AbstractContextManager[Any]] = nullcontext  # names a part in a profiler's trace
        self.marks = [(IDLE, self.mark())]

    def mark(self) -> Any:
        """Return the time in seconds, or a CUDA event."""
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream())
        return event

    def switch(self, phase: str) -> None:
        self.current = phase
        self.marks.append((phase, self.mark()))

    @contextmanager
    def phase(self, phase: str) -> Iterator[None]:
        """Run the block as a nested phase; the outer phase continues afterwards."""
        outer = self.current
        self.switch(phase)
        try:
            with self.label(phase):
                yield
        finally:
            self.switch(outer)

    def lap(self) -> dict[str, float]:
        """Return the seconds of every phase since the last call; synchronises with a GPU."""
        self.switch(self.current)
        if self.on_gpu:
            self.marks[-1][1].synchronize()
        seconds: dict[str, float] = defaultdict(float)
        for (phase, start), (_, end) in zip(self.marks, self.marks[1:], strict=False):
            seconds[phase] += start.elapsed_time(end) / 1000 if self.on_gpu else end - start
        self.marks = self.marks[-1:]
        return dict(seconds)


class StepTimer(Callback):
    """Logs `step/<phase>_s` for every batch: the seconds since the previous batch, split into PHASES and ROLLOUTS.

    `student` is the student's forward and backward pass, the loss and gradient clipping; `save` and `evaluation` are
    those after the previous batch. The model marks the teacher's part itself, on the same clock. Must come before the
    callback that writes checkpoints.
    """

    def __init__(self, clock: PhaseClock):
        self.clock = clock

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        if event in PHASE_OF_EVENT:
            self.clock.switch(PHASE_OF_EVENT[event])
        super().run_event(event, state, logger)

    def fit_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        self.clock.lap()

    def batch_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        self.clock.switch(IDLE)
        seconds = self.clock.lap()
        phases = [*PHASES, *([ROLLOUTS] if ROLLOUTS in seconds else [])]
        logger.log_metrics({f"step/{phase}_s": seconds.get(phase, 0.0) for phase in phases})


class StepProfile(Callback):
    """Records the fourth step of this session with torch's profiler, and writes its trace and table as `step`.

    Composer's own profiler does not label the parts of a step and passes its files to every logger.
    """

    def __init__(self, folder: Path, clock: PhaseClock | None = None):
        self.folder, self.clock = folder, clock
        self.device = torch.device("cpu")
        self.profiler: profile | None = None  # warms up in one step, then records one
        self.part: Any = None  # currently open label
        self.steps = 0  # trained in this session

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        if event in PART_OF_EVENT:
            self.enter(PART_OF_EVENT[event])
        super().run_event(event, state, logger)

    def before_dataloader(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        length = state.dataloader_len
        if length is not None and state.timestamp.batch_in_epoch >= length:
            return
        if self.profiler is None and self.steps == WARM_STEPS - 1:
            self.device = torch.device("cuda" if state.device.name == "gpu" else "cpu")
            self.profiler = profile(
                activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.device.type == "cuda" else [])],
                schedule=schedule(wait=0, warmup=1, active=1, repeat=1),
                record_shapes=True,
                profile_memory=True,
                acc_events=True,  # a single cycle; without this, torch 2.11 warns about lost events
            )
            clock_s(self.device)
            self.profiler.start()
        elif self.profiler is not None:
            clock_s(self.device)  # the device has finished the step before
            self.profiler.step()
            if self.clock is not None:
                self.clock.label = record_function
        self.enter("data")

    def batch_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        self.enter(None)
        if self.profiler is not None and self.steps == WARM_STEPS:
            profiler = self.profiler
            clock_s(self.device)
            profiler.step()
            self.stop()
            self.write(profiler)
            print(f"{self.folder}: the step of batch {state.timestamp.batch.value}", file=sys.stderr)
        self.steps += 1

    def close(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Report a missing profile, also after an error. Composer calls this twice."""
        if 0 <= self.steps <= WARM_STEPS:
            self.enter(None)
            self.stop()
            needs = f"step {WARM_STEPS + 1} is recorded"
            print(f"{self.folder}: no profile: this session trained {self.steps} steps, {needs}", file=sys.stderr)
        self.steps = -1

    def stop(self) -> None:
        if self.clock is not None:
            self.clock.label = nullcontext
        if self.profiler is not None:
            self.profiler.stop()
            self.profiler = None

    def write(self, profiler: profile) -> None:
        """Write trace and table of the recorded step, replacing an older profile."""
        self.folder.mkdir(parents=True, exist_ok=True)
        trace = self.folder / "step.pt.trace.json.gz"
        partial = partial_path(trace).with_suffix(".partial.gz")  # torch compresses if the name ends in .gz
        try:
            profiler.export_chrome_trace(str(partial))
            partial.replace(trace)
        finally:
            partial.unlink(missing_ok=True)
        by = "self_device_time_total" if self.device.type == "cuda" else "self_cpu_time_total"
        table = profiler.key_averages().table(sort_by=by, row_limit=OPERATIONS, max_name_column_width=70)
        write_text(table, self.folder / "step.txt")

    def enter(self, part: str | None) -> None:
        """Close the open label, and open another in the recorded step."""
        if self.part is not None:
            self.part.__exit__(None, None, None)
            self.part = None
        if part is not None and self.profiler is not None and self.steps == WARM_STEPS:
            self.part = record_function(part)
            self.part.__enter__()


def profiled_steps(folder: Path | None, clock: PhaseClock | None = None) -> list[Callback]:
    """Return the profiling callback on rank 0, since all ranks do the same work; none without a directory."""
    return [] if folder is None or dist.get_global_rank() != 0 else [StepProfile(folder, clock)]


CONSOLE_INTERVAL = "10ba"  # between console lines without a progress bar
TRACKERS = {"tensorboard": TensorboardLogger, "wandb": WandBLogger, "mlflow": MLFlowLogger}  # key = its package


def build_loggers(config: DistillConfig, log_folder: Path, run_name: str) -> list[LoggerDestination]:
    """Build the console logger and every logger of section distill.

    Args:
        run_name: Run name in trackers, unless the recipe sets one.

    Raises:
        UserError: If a tracker's package is not installed.
    """
    defaults = {
        "file": {"filename": str(log_folder / "metrics.jsonl")},
        "tensorboard": {"log_dir": str(log_folder / "tensorboard")},
        "wandb": {"name": run_name},
        "mlflow": {"run_name": run_name},
    }
    loggers: list[LoggerDestination] = [ConsoleReport()]
    for name, arguments in config.loggers.items():
        assert isinstance(arguments, Mapping)
        loggers.append(build_logger(name, {**defaults[name], **arguments}))
    return loggers


def build_logger(name: str, arguments: Mapping[str, Any]) -> LoggerDestination:
    if name == "file":
        return MetricsFile(**arguments)
    if (problem := missing_package(name)) is not None:
        raise UserError(problem)
    return TRACKERS[name](**arguments)


class MetricsFile(LoggerDestination):
    """Appends metrics to a JSON-lines file, on rank 0.

    A line has "batch", the number of batches trained, and metrics by name; those of one batch may be split over
    several lines. A resumed training run first drops the lines after its checkpoint.
    """

    def __init__(self, filename: str):
        self.path = Path(filename)
        self.step = 0
        self.pending: dict[str, float] = {}

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Buffer metrics until all of this batch have been logged."""
        if dist.get_global_rank() != 0:
            return
        assert step is not None, "Composer's Logger always passes the batch"
        if step != self.step:
            self.write()
            self.step = step
        self.pending.update({name: float(value) for name, value in metrics.items()})

    def write(self) -> None:
        if self.pending:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"batch": self.step, **self.pending}) + "\n")
            self.pending = {}

    def after_load(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        if dist.get_global_rank() == 0 and self.path.is_file():
            batch = state.timestamp.batch.value
            lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines if line.endswith("\n") and json.loads(line)["batch"] <= batch]
            self.path.write_text("".join(kept) if batch > 0 else "", encoding="utf-8")

    def eval_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        self.write()

    def fit_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        self.write()


class ConsoleReport(LoggerDestination):
    """Progress, loss and held-out acceptance on stderr, on rank 0; one progress bar in a terminal.

    Composer's progress bar has neither loss nor intervals, and its console logger prints a line per metric.
    """

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True, quiet=dist.get_global_rank() != 0)
        self.is_due = create_interval_scheduler(CONSOLE_INTERVAL, checkpoint_events=False)
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        in_terminal = self.console.is_terminal
        self.bar = Progress(*columns, TimeRemainingColumn(), console=self.console) if in_terminal else None
        self.latest: dict[str, float] = {}
        self.start_s, self.start_fraction, self.start_tokens, self.start_training_s = time.monotonic(), 0.0, 0, 0.0

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:  # noqa: ARG002
        self.latest.update(metrics)

    def fit_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Start the clock at the progress of a resumed training run."""
        self.start_s, self.start_fraction = time.monotonic(), fraction_done(state)
        self.start_tokens, self.start_training_s = state.timestamp.token.value, training_s(state)
        if self.bar is not None:
            self.bar.add_task("training", total=1.0, completed=self.start_fraction)  # pyright: ignore[reportArgumentType]  # rich adds floats too
            self.bar.start()

    def batch_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=fraction_done(state), description=self.describe(state))
        elif self.is_due(state, Event.BATCH_END):
            self.print_line(state)

    def epoch_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        if self.bar is None and self.is_due(state, Event.EPOCH_END):
            self.print_line(state)

    def eval_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        lines: dict[str, list[str]] = defaultdict(list)  # for all responses, and by task if there are several
        for name, estimate in estimates(state.eval_metrics["eval"]).items():
            task, _, metric = name.rpartition("/")
            lines[f"{task}: " if task else ""].append(f"{metric.replace('_', ' ')} {interval(estimate)}")
        for task, parts in lines.items():
            line = f"batch {state.timestamp.batch.value}: held-out {task}{', '.join(parts)}"
            self.console.print(line, style="bold")

    def close(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Restore the terminal, also after an error."""
        if self.bar is not None:
            self.bar.stop()

    def print_line(self, state: State) -> None:
        fraction = (fraction_done(state) - self.start_fraction) / max(1e-9, 1 - self.start_fraction)
        left = time_left(time.monotonic() - self.start_s, fraction)
        self.console.print(f"{self.describe(state)}, {duration(left)} left")

    def describe(self, state: State) -> str:
        elapsed_s = training_s(state) - self.start_training_s
        tokens_per_s = (state.timestamp.token.value - self.start_tokens) / max(elapsed_s, 1e-9)
        mfu = self.latest.get("throughput/device/mfu")
        used = "" if mfu is None else f", MFU {mfu:.0%}"
        batch, done = state.timestamp.batch.value, fraction_done(state)
        loss = self.latest["loss/train/total"]
        return f"batch {batch} ({done:.0%}): loss {loss:.4f} nats/token, {tokens_per_s:.0f} tokens/s{used}"


def fraction_done(state: State) -> float:
    """Return the progress of the training run, in [0, 1]."""
    assert state.max_duration is not None
    return min(1.0, state.timestamp.get(state.max_duration.unit).value / state.max_duration.value)


def training_s(state: State) -> float:
    """Return the seconds of training over all sessions, without evaluations."""
    return state.timestamp.total_wct.total_seconds()
