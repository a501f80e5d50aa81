"""How long a training will take yet: the batches at their latest pace, and every evaluation that is still to come."""

from composer import Time

from architectures.progress.time_left import TimeLeft


class TrainingTimeLeft:
    """What is known of one session of a training.

    Args:
        start: Share of the whole training that was done when the session began, in [0, 1].
        start_s: When that was.
        every: Share of the training between two evaluations; None where that is seen only once they come.
    """

    def __init__(self, start: float, start_s: float, every: float | None):
        self.batches = TimeLeft(1.0 - start, start_s)
        self.start, self.every = start, every
        self.evaluated_at, self.evaluation_s, self.all_evaluations_s = start, 0.0, 0.0

    def trained(self, done: float, now_s: float) -> None:
        """So much of the training was done by now."""
        self.batches.advance(max(0.0, done - self.start - self.batches.done), now_s - self.all_evaluations_s)

    def evaluated(self, done: float, took_s: float) -> None:
        """An evaluation took so long; the pace of the batches leaves it out."""
        if self.every is None and done > self.evaluated_at:
            self.every = done - self.evaluated_at
        self.evaluated_at, self.evaluation_s = done, took_s
        self.all_evaluations_s += took_s

    @property
    def seconds(self) -> float | None:
        """Time left; None before the first batch."""
        trained_s = self.batches.seconds
        if trained_s is None:
            return None
        left = max(0.0, self.batches.total - self.batches.done)
        since = self.start + self.batches.done - self.evaluated_at
        due = 0 if not self.every else int((since + left) / self.every + 1e-6)
        return trained_s + due * self.evaluation_s


def share_of(interval: str, whole: str) -> float | None:
    """What share of a training an interval is; None where they are in different units."""
    every, total = Time.from_timestring(interval), Time.from_timestring(whole)
    if every.unit.value == "dur":
        return float(every.value)
    return every.value / total.value if every.unit == total.unit and total.value > 0 else None
