"""What a student learns whose output head outputs some ids alone, from a teacher that outputs all of them.

Shape suffixes used in this file:
    B = sequences in the batch, T = tokens per sequence, X = any axes
    K = rows of the student's head; A = positions that predict an answer token, of all sequences together

Let S be the ids that the head outputs, p the teacher's distribution, P = p(S) the mass it gives to them, p_S = p / P
on S, and q the student's, zero outside S. The rule: a position whose answer token is outside S is not trained on (its
loss is 0, and it counts in the mean); at every other one the student is compared with p_S, which is the softmax of the
teacher's logits over S.

For answers sampled from the teacher at temperature 1 this is the forward KL, unbiased, as far as a student can change
it. KL(p || q) is infinite where P < 1, but the part of it that q enters is -Σ_S p log q = P (KL(p_S || q) + H(p_S)),
whose gradient is P times that of KL(p_S || q). The chance that the answer token is in S is P, so that the mean of the
rule over answers, E[1(token in S)] KL(p_S || q), has that very gradient; and only K logits of the teacher are made.
`cross_entropy` is the same with the token in the place of p_S: E[1(token in S) (-log q(token))] = -Σ_S p log q.
Any other loss L becomes P L(p_S, q) in the mean: zero where q = p_S, the q of greatest likelihood. There
Σ_S min(p, q) = P as well, the most that any q outside whose reach 1 - P lies can get accepted; and on the way
P Σ_S min(p_S, q) = Σ_S min(p, P q) is at most the true alpha. Greedy answers take the place of P by 0 or 1: where their
token is outside S no student is accepted, whatever it says.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from distill.losses.chunked import Head


def rows_of_tokens(ids_K: Tensor, token_ids_X: Tensor) -> tuple[Tensor, Tensor]:
    """rows_X and is_output_X: the row of a head that outputs each token, and whether there is one; else the row is any.

    Args:
        ids_K: The token id of each row, ascending.
        token_ids_X: Of any shape.
    """
    rows_X = torch.searchsorted(ids_K, token_ids_X.contiguous()).clamp(max=len(ids_K) - 1)
    return rows_X, ids_K[rows_X] == token_ids_X


def learned(batch: Mapping[str, Tensor], ids_K: Tensor | None) -> dict[str, Tensor]:
    """A batch as a head of some ids learns from it: what it cannot output is no longer in `keep`, but in `unsaid`.

    Args:
        batch: Of distill/data/batches.py, distill/training/text_training.py or distill/teacher_cache.py.
        ids_K: The token id of each row, ascending; None where row k is token k, and the batch stays what it is.

    Returns:
        The batch with rows of the head in `next_ids`.
    """
    if ids_K is None:
        return dict(batch)
    next_BT, keep_BT = batch["next_ids"], batch["keep"]
    rows_BT, is_output_BT = rows_of_tokens(ids_K.to(next_BT.device), next_BT)
    return {**batch, "next_ids": rows_BT, "keep": keep_BT & is_output_BT, "unsaid": keep_BT & ~is_output_BT}


class FrozenRows:
    """Some rows of a frozen head, copied out of it once: it never changes, and every step reads the same ones."""

    def __init__(self) -> None:
        self.head: Head | None = None

    def of(self, head: Head, ids_K: Tensor) -> Head:
        """The head with the rows of these ids alone; one that says only those already is returned as it is."""
        if head.ids_V is not None:
            return head.narrowed(len(ids_K))
        if self.head is None:
            self.head = head.rows_of(ids_K.to(head.weight_VH.device))
        return self.head
