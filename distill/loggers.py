"""Where a training reports to: the console, a JSON-lines file, and trackers named in the recipe."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from composer import Event, Logger, State
from composer.loggers import LoggerDestination, MLFlowLogger, TensorboardLogger, WandBLogger
from composer.utils import create_interval_scheduler, dist
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from architectures.errors import UserError
from architectures.progress.track import duration, time_left
from distill.metrics import estimates
from distill.recipe.sections.training import DistillConfig, missing_package
from eval.acceptance.estimates import Estimate

CONSOLE_INTERVAL = "10ba"  # between lines on the console where there is no progress bar
TRACKERS = {"tensorboard": TensorboardLogger, "wandb": WandBLogger, "mlflow": MLFlowLogger}  # name = its package


def build_loggers(config: DistillConfig, log_folder: Path, run_name: str) -> list[LoggerDestination]:
    """The console, and every logger the recipe names.

    Args:
        config: Section distill.
        log_folder: Of what is written to files.
        run_name: What trackers call the training, unless the recipe says otherwise.

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
    """One logger by its name in the recipe."""
    if name == "file":
        return MetricsFile(**arguments)
    if (problem := missing_package(name)) is not None:
        raise UserError(problem)
    return TRACKERS[name](**arguments)


class MetricsFile(LoggerDestination):
    """Appends every metric to a file of JSON lines, rank 0 only.

    A line holds "batch", the number of batches trained, and metrics by name. What belongs to one batch may stand on
    several lines. A resumed training first drops the lines beyond the batch it resumes from.
    """

    def __init__(self, filename: str):
        self.path = Path(filename)
        self.step = 0
        self.pending: dict[str, float] = {}

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Remember metrics until all of this batch are there."""
        if dist.get_global_rank() != 0:
            return
        assert step is not None, "Composer's Logger always tells the batch"
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
        """Forget what an earlier session logged beyond the checkpoint it left."""
        if dist.get_global_rank() == 0 and self.path.is_file():
            batch = state.timestamp.batch.value
            lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines if line.endswith("\n") and json.loads(line)["batch"] <= batch]
            self.path.write_text("".join(kept) if batch > 0 else "", encoding="utf-8")

    def eval_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """An evaluation should be on disk as soon as it is done."""
        self.write()

    def fit_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        self.write()


class ConsoleReport(LoggerDestination):
    """Progress, loss and held-out acceptance on stderr, rank 0 only.

    Composer's progress bar has neither the loss nor intervals, and its console logger prints every metric on a line.
    In a terminal there is one bar with the time left.
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
        """Remember the newest value of every metric."""
        self.latest.update(metrics)

    def fit_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Start the clock, wherever in the training run this session starts."""
        self.start_s, self.start_fraction = time.monotonic(), fraction_done(state)
        self.start_tokens, self.start_training_s = state.timestamp.token.value, training_s(state)
        if self.bar is not None:
            self.bar.add_task("training", total=1.0, completed=self.start_fraction)  # pyright: ignore[reportArgumentType]  # rich adds floats too
            self.bar.start()

    def batch_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Move the bar, or print a line if one is due."""
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=fraction_done(state), description=self.describe(state))
        elif self.is_due(state, Event.BATCH_END):
            self.print_line(state)

    def epoch_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Print a line if lines are due by epoch."""
        if self.bar is None and self.is_due(state, Event.EPOCH_END):
            self.print_line(state)

    def eval_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Print the held-out metrics."""
        for line in describe_evaluation(estimates(state.eval_metrics["eval"])):
            self.console.print(f"batch {state.timestamp.batch.value}: held-out {line}", style="bold")

    def close(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Leave the terminal as it was, also after an error."""
        if self.bar is not None:
            self.bar.stop()

    def print_line(self, state: State) -> None:
        """How far the training run is."""
        fraction = (fraction_done(state) - self.start_fraction) / max(1e-9, 1 - self.start_fraction)
        left = time_left(time.monotonic() - self.start_s, fraction)
        self.console.print(f"{self.describe(state)}, {duration(left)} left")

    def describe(self, state: State) -> str:
        """The state of training in one line."""
        elapsed_s = training_s(state) - self.start_training_s
        tokens_per_s = (state.timestamp.token.value - self.start_tokens) / max(elapsed_s, 1e-9)
        mfu = self.latest.get("throughput/device/mfu")
        used = "" if mfu is None else f", MFU {mfu:.0%}"
        batch, done = state.timestamp.batch.value, fraction_done(state)
        loss = self.latest["loss/train/total"]
        return f"batch {batch} ({done:.0%}): loss {loss:.4f} nats/token, {tokens_per_s:.0f} tokens/s{used}"


def describe_evaluation(results: Mapping[str, Estimate]) -> list[str]:
    """One line about all answers, and one about each task where there are several."""
    lines: dict[str, list[str]] = {}
    for name, estimate in results.items():
        task, _, metric = name.rpartition("/")
        interval = "" if estimate.interval is None else " [{:.3f}, {:.3f}]".format(*estimate.interval)
        lines.setdefault(task, []).append(f"{metric.replace('_', ' ')} {estimate.value:.3f}{interval}")
    return [f"{task}: {', '.join(parts)}" if task else ", ".join(parts) for task, parts in lines.items()]


def fraction_done(state: State) -> float:
    """How much of the training is done, in [0, 1]."""
    assert state.max_duration is not None
    return min(1.0, state.timestamp.get(state.max_duration.unit).value / state.max_duration.value)


def training_s(state: State) -> float:
    """Seconds spent training so far, over all sessions and without evaluations."""
    return state.timestamp.total_wct.total_seconds()
