"""Which answered requests an update learns from: the newest ones, and others that are still kept. No torch.

What is kept after a request depends on the requests before it and the seed alone, so that an interrupted training finds
the same buffer again by counting from the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

Eviction = Literal["oldest", "random"]


@dataclass
class Buffer:
    """The places in the stream of the requests that are kept.

    Attributes:
        size: So many at most.
        eviction: The oldest makes way, or any with the same chance.
        seed: Of these chances, and of which old requests are learned again.
        kept: Places in the stream, in no order where any makes way.
        evicted: Those that made way with the last call of `add`.
    """

    size: int
    eviction: Eviction
    seed: int
    kept: list[int] = field(default_factory=list)
    evicted: list[int] = field(default_factory=list)

    def add(self, requests: Sequence[int]) -> None:
        """Keep some more; none of them makes way for another of them."""
        self.evicted = []
        for request in requests:
            if len(self.kept) == self.size:
                self.evicted.append(self.kept.pop(self.leaving(request, new=requests)))
            self.kept.append(request)

    def leaving(self, request: int, *, new: Sequence[int]) -> int:
        """Where the request stands among those kept that makes way for a new one."""
        if self.eviction == "oldest":
            return 0
        old = [index for index, kept in enumerate(self.kept) if kept not in set(new)]
        return old[int(np.random.default_rng([self.seed, request]).integers(len(old)))]

    def batch(self, new: Sequence[int], *, size: int, step: int) -> list[int]:
        """The new requests, and others that are kept until there are so many; fewer where no more are kept.

        Args:
            new: What the last update has not learned yet.
            size: Requests of a step.
            step: Of the whole training; each draws others.
        """
        others = [request for request in self.kept if request not in set(new)]
        wanted = min(max(0, size - len(new)), len(others))
        drawn = np.random.default_rng([self.seed, step, 1]).choice(len(others), wanted, replace=False) if wanted else []
        return [*new, *(others[int(index)] for index in sorted(drawn))]
