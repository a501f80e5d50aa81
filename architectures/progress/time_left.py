"""How long a loop will take yet, from how long it took lately. Pure: whoever counts tells the time.

The mean since the start is wrong for long where a loop begins slowly (models are loaded, buffers made) or becomes
slower on the way (another program starts). So the pace is that of a window: the latest quarter of the time or of the
work, whichever is less, and at least a few items; the first of all is left out. Items may be of unequal work, as far as
somebody knows of how much.

rich's own column looks back a fixed number of seconds, and says nothing of items that take longer than those.
"""

from collections import deque
from dataclasses import dataclass, field

WINDOW_SHARE = 0.25  # of the time decides where a loop becomes slower, and of the work where it becomes faster
WINDOW_ITEMS = 5  # at least, so that one odd item does not decide
FIRST_ITEMS = 3  # from then on the first of all, which loads and sets up, is left out


@dataclass
class TimeLeft:
    """What is known of a loop.

    Attributes:
        total: Work, in whatever unit.
        start_s: When it began.
    """

    total: float
    start_s: float
    done: float = 0.0
    _marks: deque[tuple[float, float]] = field(default_factory=deque)  # (when, work done) after each item
    _has_start: bool = True  # whether the first of them is the start

    def __post_init__(self) -> None:
        self._marks.append((self.start_s, 0.0))

    def advance(self, work: float, now_s: float) -> None:
        """Some more work was done by now."""
        if work == 0:
            return
        self.done += work
        self._marks.append((now_s, self.done))
        if self._has_start and len(self._marks) > FIRST_ITEMS:
            self._marks.popleft()
            self._has_start = False
        horizon_s, horizon = now_s - WINDOW_SHARE * (now_s - self.start_s), (1 - WINDOW_SHARE) * self.done
        while len(self._marks) > WINDOW_ITEMS + 1 and (self._marks[1][0] <= horizon_s or self._marks[1][1] <= horizon):
            self._marks.popleft()

    @property
    def seconds(self) -> float | None:
        """Time left after the latest item; None before there was one."""
        (first_s, first_done), (last_s, last_done) = self._marks[0], self._marks[-1]
        if last_done <= first_done:
            return None
        return (last_s - first_s) / (last_done - first_done) * max(0.0, self.total - self.done)
