"""Work that several processes share out: which part is whose, and how they wait for one another. No torch.

They all take the same steps in the same order. What a step shares out is told by the numbers of its units alone, and
what comes of the units is put together in their order: so the outcome is that of one process, however many there are.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

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
        step = self._next_step()
        own = f"{step}/{self.index}"
        self.board.put(own, pickle.dumps(value))
        values = [read(self.board, f"{step}/{index}") for index in range(self.count)]
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

    def gather(self, units: Sequence[Unit], make: Callable[[Unit], Made]) -> list[Made]:
        """What is made of each unit, in their order, on every process."""
        return self.together([make(unit) for unit in self.mine(units)])

    def together(self, made: Sequence[Made]) -> list[Made]:
        """What every process made of its units, in the order of all units, on every process."""
        parts = self.exchange(list(made))
        return [parts[number % self.count][number // self.count] for number in range(sum(map(len, parts)))]

    def in_order(self, units: Sequence[Unit], make: Callable[[Unit], Made]) -> Iterator[Made]:
        """What is made of each unit, in their order, on the first process; on the others nothing, once theirs are made.

        Values go to the first process one by one: it holds those alone that it has not come to yet.
        """
        step = self._next_step()
        for number, unit in enumerate(units):
            name = f"{step}/{number}"
            if number % self.count == self.index:
                made = make(unit)
                if self.leads:
                    yield made
                else:
                    self._board.put(name, pickle.dumps(made))
            elif self.leads:
                yield read(self._board, name)
                self._board.drop(name)

    @property
    def _board(self) -> Board:
        assert self.board is not None
        return self.board

    def _next_step(self) -> int:
        self._step += 1
        return self._step


def read(board: Board, name: str) -> Any:
    """A value that another process of this very command has left."""
    return pickle.loads(board.get(name))  # noqa: S301  # nobody else's is ever there


ALONE = Share()
