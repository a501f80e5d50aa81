"""A draft that has become worse, or is no number any more, gives way to the last good one.

Each request is a fair trial: it is served by a draft that has not learned from it, and the last good draft is asked
what it would have done with the same answer. After so many updates the differences are tested
(eval/shift/regression.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from composer.utils import dist
from torch import nn
from torch.optim import Optimizer

from distill.recipe.sections.online import GuardConfig
from distill.requests.served import Served
from distill.requests.weights import Snapshot, put_back, trained_weights
from eval.records.request import RequestRecord
from eval.shift.regression import is_worse

Alpha = Callable[[Served], float]  # mean chance of the draft's proposals along an answer


@dataclass
class Guard:
    """The last good draft, and how the drafts after it did beside it.

    Attributes:
        config: When they are compared, and how surely; None takes nothing back but what is no number.
        draft: That learns.
        optimizer: That moves it.
        alpha: Of the draft as it is.
        served_by: alpha of the drafts that served, a request each, since the last good one.
        good_would: alpha of the good draft on the same.
    """

    config: GuardConfig | None
    draft: nn.Module
    optimizer: Optimizer
    alpha: Alpha
    served_by: list[float] = field(default_factory=list)
    good_would: list[float] = field(default_factory=list)
    good: Snapshot = field(init=False)

    def begin(self, updates: int) -> None:
        """The draft as it is counts as good."""
        self.good = Snapshot.of(self.draft, self.optimizer, updates=updates)

    def watch(self, interval: Sequence[tuple[Served, RequestRecord]]) -> None:
        """Compare on requests that were served by later drafts than the good one, before they are learned."""
        later = [(served, record) for served, record in interval if served.seen_by > self.good.updates]
        if self.config is None or not later:
            return
        newest = {name: weight.clone() for name, weight in trained_weights(self.draft).items()}
        put_back(self.draft, self.good.weights)
        self.good_would += [self.alpha(served) for served, _ in later]
        put_back(self.draft, newest)
        self.served_by += [record.alpha for _, record in later]

    def judge(self, updates: int) -> str | None:
        """Why the draft was taken back after so many updates; None where it stays. The same on every process."""
        if not self.is_finite():
            self.take_back()
            return "its weights are no numbers"
        if self.config is None or updates % self.config.every:
            return None
        served_by, good_would = gathered(self.served_by), gathered(self.good_would)
        self.served_by, self.good_would = [], []
        if is_worse(served_by, good_would, level=self.config.level):
            self.take_back()
            return f"alpha {mean(served_by):.3f} where the last good draft has {mean(good_would):.3f}"
        self.good = Snapshot.of(self.draft, self.optimizer, updates=updates)
        return None

    def is_finite(self) -> bool:
        """Whether all that is trained is numbers."""
        return all(bool(torch.isfinite(weight).all()) for weight in trained_weights(self.draft).values())

    def take_back(self) -> None:
        """The last good draft again, and its optimiser."""
        self.good.restore(self.draft, self.optimizer)
        self.served_by, self.good_would = [], []


def mean(values: Sequence[float]) -> float:
    """Of at least one value."""
    return sum(values) / len(values)


def gathered(own: Sequence[float]) -> list[float]:
    """The values of all processes, in the order of their ranks."""
    return [value for each in dist.all_gather_object(list(own)) for value in each]
