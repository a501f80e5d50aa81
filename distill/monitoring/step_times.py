"""Where each step's time goes, as metrics of every batch, and a watchdog."""

from collections.abc import Mapping

from composer import Callback, Logger, State
from composer.utils import dist

from distill.monitoring.phase_clock import PhaseClock, Watchdog

PHASES = ("data", "teacher", "student", "optimiser", "save", "evaluation", "other")
ROLLOUTS = "rollouts"  # one more, where answers are written while the student trains


class StepTimes(Callback):
    """Logs `step/<phase>_s` for every batch: the seconds since the batch before, split into PHASES, and ROLLOUTS.

    `student` is the student's forward and backward pass, the loss and the clipping of gradients; `save` and
    `evaluation` are those that followed the batch before. The model names the teacher's part itself, on the same clock.
    Must stand before what writes checkpoints among the trainer's callbacks.

    Args:
        clock: The one the model switches to "teacher".
    """

    def __init__(self, clock: PhaseClock):
        self.clock = clock
        self.watchdog: Watchdog | None = None
        self.batch = 0

    def fit_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        """Begin to measure and to watch."""
        self.batch = state.timestamp.batch.value
        self.clock.lap()
        self.watchdog = Watchdog(self.describe)
        self.watchdog.start()

    def before_dataloader(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """The next batch is fetched."""
        self.clock.switch("data")

    def after_dataloader(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """It is there: the student's part begins, and the teacher's within it."""
        self.clock.switch("student")

    def after_train_batch(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        self.clock.switch("optimiser")

    def batch_end(self, state: State, logger: Logger) -> None:
        """The student has moved: log how long everything took."""
        self.clock.switch("other")
        seconds = self.clock.lap()
        phases = [*PHASES, *([ROLLOUTS] if ROLLOUTS in seconds else [])]
        logger.log_metrics({f"step/{phase}_s": seconds.get(phase, 0.0) for phase in phases})
        self.batch = state.timestamp.batch.value
        self.beat()

    def batch_checkpoint(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """A checkpoint may be written now."""
        self.clock.switch("save")

    def epoch_checkpoint(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        self.clock.switch("save")

    def eval_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """The teacher's part of an evaluation counts as evaluation too: see eval_end."""
        self.clock.switch("evaluation")

    def eval_batch_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """An evaluation is no silence."""
        self.beat()

    def eval_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        self.clock.switch("other")

    def close(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Stop watching, also after an error."""
        if self.watchdog is not None:
            self.watchdog.stop()

    def beat(self) -> None:
        if self.watchdog is not None:
            self.watchdog.beat()

    def describe(self) -> str:
        """For the watchdog: the phase, the batch, and the rank where there are several."""
        rank = f"rank {dist.get_global_rank()}, " if dist.get_world_size() > 1 else ""
        return f"{rank}batch {self.batch + 1}, phase {self.clock.current}"


class PhaseShares:
    """Adds up the phases of steps and says what share each has."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys((*PHASES, ROLLOUTS), 0.0)

    def add(self, metrics: Mapping[str, float]) -> None:
        """Count the step times among some metrics."""
        for phase in self.seconds:
            self.seconds[phase] += metrics.get(f"step/{phase}_s", 0.0)

    def describe(self) -> str:
        """Every phase that took half a percent or more, as "teacher 44%, student 50%", and begin again."""
        total_s = sum(self.seconds.values())
        shares = {phase: seconds / total_s for phase, seconds in self.seconds.items()} if total_s else {}
        self.seconds = dict.fromkeys(self.seconds, 0.0)
        return ", ".join(f"{phase} {share:.0%}" for phase, share in shares.items() if share >= 0.005)
