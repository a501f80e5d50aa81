"""Where no teacher is asked: the student learns the tokens of the text, and evaluations compare with these alone."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class AbsentTeacher:
    """Stands where a teacher would.

    Attributes:
        vocab_size: Rows of the target's output head: ids that it does not have are not learned either.
    """

    vocab_size: int

    def flops(self, batch: Mapping[str, Tensor], *, rows: int | None = None) -> int:  # noqa: ARG002  # as every teacher's
        """Of what it says: nothing."""
        return 0
