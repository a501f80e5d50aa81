"""What a choice leaves out, and why. No torch."""

from dataclasses import dataclass
from typing import Literal

Rule = Literal[
    "cannot be cut", "too many parameters", "too slow", "a wider one fits", "cannot pay", "dominated", "beaten"
]


@dataclass(frozen=True)
class LeftOut:
    """A shape that is out.

    Attributes:
        candidate: Its name.
        rule: By which it is out.
        reason: With figures, as the end of a sentence about it.
        after: The training after which it was out; None of those that were not trained.
    """

    candidate: str
    rule: Rule
    reason: str
    after: str | None = None
