"""Several servers as one: whoever has the least to do is asked, and where one fails the others go on."""

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from eval.answer_engines.clients.exchange import Asked, EngineLostError, Reply, Server


@dataclass
class Load:
    """One server, what it has to do, and whether it is gone."""

    server: Server
    in_flight: int = 0
    lost: str | None = None


@dataclass
class Servers:
    """Servers of one target; safe for threads."""

    loads: list[Load]
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, servers: Sequence[Server]) -> "Servers":
        return cls([Load(server) for server in servers])

    @property
    def there(self) -> list[Server]:
        """Those that are not lost."""
        return [load.server for load in self.loads if load.lost is None]

    def ask(self, asked: Asked) -> tuple[Reply, Server]:
        """A reply, and whose it is.

        Raises:
            EngineLostError: If the last server is lost.
        """
        while True:
            load = self.take()
            try:
                return load.server.ask(asked), load.server
            except EngineLostError as error:
                self.lose(load, str(error))
            finally:
                self.give_back(load)

    def take(self) -> Load:
        """The server with the least to do."""
        with self.lock:
            left = [load for load in self.loads if load.lost is None]
            if not left:
                raise EngineLostError("\n".join(str(load.lost) for load in self.loads))
            load = min(left, key=lambda each: each.in_flight)
            load.in_flight += 1
            return load

    def give_back(self, load: Load) -> None:
        with self.lock:
            load.in_flight -= 1

    def lose(self, load: Load, why: str) -> None:
        """Ask a server no more; says so once, where others are left."""
        with self.lock:
            is_first, load.lost = load.lost is None, why
            left = sum(each.lost is None for each in self.loads)
        if is_first and left:
            print(f"{why} {left} of {len(self.loads)} servers go on.", file=sys.stderr, flush=True)
