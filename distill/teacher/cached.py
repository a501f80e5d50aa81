"""A teacher that is not run: a cache kept what it said, and each batch brings the rows of its answers.

Shape suffixes used in this file:
    A = positions that predict an answer token, of all sequences of a batch, one row each; C = some of these
    K = ids that the student outputs
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from distill.flops import head_flops
from distill.losses.chunked import Head
from distill.losses.kept_rows import FrozenRows
from distill.teacher.live import TeacherRows
from distill.teacher_cache.answers import rows_in


@dataclass(frozen=True)
class KeptEntries:
    """What a cache kept at every answer position of a batch where it did not keep hidden states.

    Attributes:
        kept: Named tensors with one row for each of the A positions, as distill/formulas/sparse.py wants them.
    """

    kept: Mapping[str, Tensor]

    def outputs(self, rows: slice | Tensor) -> dict[str, Tensor]:
        """What a loss is told of some rows: the same tensors, C rows of each."""
        return {name: kept_A[rows] for name, kept_A in self.kept.items()}


class CachedTeacher:
    """Says of a batch what a cache says. Of its weights only the output head is there, for hidden states.

    Args:
        head: Of the teacher, in the dtype of the hidden states, on the device the student trains on.
    """

    def __init__(self, head: Head):
        self.head = head
        self.kept_rows = FrozenRows()

    @property
    def vocab_size(self) -> int:
        return self.head.vocab_size

    def rows(
        self, batch: Mapping[str, Tensor], *, vocab_size: int, ids_K: Tensor | None = None
    ) -> TeacherRows | KeptEntries:
        """What the batch brings of the kept positions: what logits are made from, over the ids of Teacher.rows.

        Or the entries that were kept, which are of the ids that the cache was made for, whatever is asked for here.
        """
        rows = rows_in(batch)
        if "hidden" in rows:
            head = self.head.narrowed(vocab_size) if ids_K is None else self.kept_rows.of(self.head, ids_K)
            return TeacherRows(rows["hidden"], head)
        return KeptEntries(rows)

    def flops(self, batch: Mapping[str, Tensor], *, rows: int | None = None) -> int:
        """FLOPs of so many rows of the head, or all, where a batch brings hidden states; 0 where it brings entries."""
        if "teacher_hidden" not in batch:
            return 0
        vocab, hidden = self.head.weight_VH.shape
        return int(batch["keep"].sum()) * head_flops(rows or vocab, hidden)
