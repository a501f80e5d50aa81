"""What goes wrong on purpose between huggingface_hub and the stand-in, and how often."""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock


@dataclass(frozen=True)
class Fault:
    """How one request fares.

    Attributes:
        status: Answered in place of what would have been.
        headers: Of that response.
        cut_after_bytes: The connection breaks after so many bytes of what is downloaded.
        meanwhile: Happens before the request is looked at: somebody moves a branch.
        spoils: Makes other bytes of what is downloaded; their number is announced if it changed.
    """

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cut_after_bytes: int | None = None
    meanwhile: Callable[[], object] | None = None
    spoils: Callable[[bytes], bytes] | None = None


NOTHING = Fault()


class Faults:
    """The faults that are still to come, by the name of the request they befall."""

    def __init__(self) -> None:
        self.planned: dict[str, list[Fault]] = {}
        self.lock = Lock()

    def plan(self, route: str, fault: Fault, *, times: int = 1) -> None:
        """Let the next requests of a route fare so, after those planned before."""
        with self.lock:
            self.planned.setdefault(route, []).extend([fault] * times)

    def take(self, route: str) -> Fault:
        with self.lock:
            waiting = self.planned.get(route)
            return waiting.pop(0) if waiting else NOTHING

    @property
    def are_over(self) -> bool:
        """Whether everything planned has happened."""
        return not any(self.planned.values())
