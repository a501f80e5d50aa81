"""Work shared by several processes: assignment of units, and synchronisation. No torch.

All processes take the same steps in the same order. A step assigns units only by their index, and results are merged
in order of the units: so the outcome equals that of one process, for any number of processes.
"""

import pickle
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

Unit = TypeVar("Unit")
Made = TypeVar("Made")


class Board(Protocol):
    """Key-value store shared by the processes; each name is used once."""

    def put(self, name: str, value: bytes) -> None: ...

    def get(self, name: str) -> bytes:
        """Return the value, waiting until it exists."""
        ...

    def drop(self, name: str) -> None:
        """Delete a value that no process needs any more."""
        ...


class Share:
    """One process's part of shared work; without a board all of it.

    Args:
        index: Of this process, from 0; the first one leads.
        per_machine: Processes per machine, numbered machine by machine; all by default.
    """

    def __init__(
        self, index: int = 0, count: int = 1, board: Board | None = None, *, per_machine: int | None = None
    ) -> None:
        assert 0 <= index < count, (index, count)
        assert (board is None) == (count == 1), "several processes have a rendezvous"
        self.index, self.count, self.board = index, count, board
        self.per_machine = per_machine or count
        self._step = 0
        self._left = ""  # name of the last exchanged value

    @property
    def leads(self) -> bool:
        """True for the process that prints, and that writes files written once."""
        return self.index == 0

    @property
    def words(self) -> str:
        """Suffix of a progress description, naming the process; empty for a single process."""
        return "" if self.count == 1 else f", process {self.index + 1} of {self.count}"

    def mine(self, units: Sequence[Unit]) -> Sequence[Unit]:
        return units[self.index :: self.count]

    def exchange(self, value: Made) -> list[Made]:
        """Return the value of every process, in order; waits for all."""
        if self.board is None:
            return [value]
        self._step += 1
        own = f"{self._step}/{self.index}"
        self.board.put(own, pickle.dumps(value))
        # Only processes of this command write there.
        values = [pickle.loads(self.board.get(f"{self._step}/{index}")) for index in range(self.count)]  # noqa: S301
        if self._left:
            self.board.drop(self._left)  # every process that reached this step has read it
        self._left = own
        return values

    def meet(self) -> None:
        self.exchange(None)

    def lead(self, decide: Callable[[], Made]) -> Made:
        return self.exchange(decide() if self.leads else None)[0]  # pyright: ignore[reportReturnType]

    def together(self, made: Sequence[Made]) -> list[Made]:
        """Merge every process's results in the order of all units, on every process."""
        parts = self.exchange(list(made))
        return [parts[number % self.count][number // self.count] for number in range(sum(map(len, parts)))]


ALONE = Share()
