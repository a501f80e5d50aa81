"""Work that several processes share out: which part is whose, and how they wait for one another. No torch.

They all take the same steps in the same order. What a step shares out is told by the numbers of its units alone, and
what comes of the units is put together in their order: so the outcome is that of one process, however many there are.
"""

import pickle
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

Unit = TypeVar("Unit")
Made = TypeVar("Made")


class Board(Protocol):
    """Where processes leave values for one another, each under a name that is used once."""

    def put(self, name: str, value: bytes) -> None: ...

    def get(self, name: str) -> bytes:
        """The value, once it is there."""
        ...

    def drop(self, name: str) -> None:
        """Forget a value that nobody asks for any more."""
        ...


class Share:
    """One process's part of work that several do; without a board it is all of the work.

    Args:
        index: Of this process, from 0; the first one leads.
        count: Of all processes.
        board: Where they meet.
        per_machine: Of the processes, which are numbered machine by machine; all where left out.
    """

    def __init__(
        self, index: int = 0, count: int = 1, board: Board | None = None, *, per_machine: int | None = None
    ) -> None:
        assert 0 <= index < count, (index, count)
        assert (board is None) == (count == 1), "several processes meet somewhere"
        self.index, self.count, self.board = index, count, board
        self.per_machine = per_machine or count
        self._step = 0
        self._left = ""  # name of the latest value that was exchanged

    @property
    def leads(self) -> bool:
        """Whether this process speaks for all of them, and writes what is written once."""
        return self.index == 0

    @property
    def words(self) -> str:
        """Behind what is being done, whose part of it this is; nothing of one process alone."""
        return "" if self.count == 1 else f", process {self.index + 1} of {self.count}"

    def mine(self, units: Sequence[Unit]) -> Sequence[Unit]:
        """Those of some units, known to all, that are this process's to make."""
        return units[self.index :: self.count]

    def exchange(self, value: Made) -> list[Made]:
        """The value of every process, in their order; all wait until all have come here."""
        if self.board is None:
            return [value]
        self._step += 1
        own = f"{self._step}/{self.index}"
        self.board.put(own, pickle.dumps(value))
        # Nobody but processes of this very command writes there.
        values = [pickle.loads(self.board.get(f"{self._step}/{index}")) for index in range(self.count)]  # noqa: S301
        if self._left:
            self.board.drop(self._left)  # all have read it who have come to this step
        self._left = own
        return values

    def meet(self) -> None:
        """Wait until all processes have come here."""
        self.exchange(None)

    def lead(self, decide: Callable[[], Made]) -> Made:
        """What the first process decides, for all of them; the others wait meanwhile."""
        return self.exchange(decide() if self.leads else None)[0]  # pyright: ignore[reportReturnType]

    def together(self, made: Sequence[Made]) -> list[Made]:
        """What every process made of its units, in the order of all units, on every process."""
        parts = self.exchange(list(made))
        return [parts[number % self.count][number // self.count] for number in range(sum(map(len, parts)))]


ALONE = Share()
