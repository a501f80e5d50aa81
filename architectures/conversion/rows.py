"""The rows of head and embedding in each form: pure functions of tensors.

Shape suffixes used in this file:
    K = ids that the draft outputs, V = vocabulary entries of its target, H = hidden width
    U = K + 1: the output ids, and the unknown token last
"""

import torch
from torch import Tensor

from architectures.draft_vocabulary.unknown import mean_of_dropped

SHARE_OF_ALL = 1 / 16  # of the losing row's weight, so that rows never output may tie for the largest logit


def losing_row(head_KH: Tensor, pushed_K: Tensor) -> Tensor:
    """row_H for an id that the draft must never propose, in the head's number type.

    A mean of the head's rows, each with a weight above zero. Its logit is the same mean of the K logits whatever the
    hidden state, since a head has no bias: at most the largest, and as large only where all K are equal. A softcap
    keeps the order. So greedily the draft proposes what the small head proposes, but for a step on which the small head
    prefers none of its ids (a hidden state of zeros), where argmax takes the lowest id of all.

    Most of the weight is on rows that training pushed down: those of ids that the training answers never contain. When
    sampling, the ids that are not output then get little (docs/engines.md).

    Rounding shifts the logit by at most half a unit in the last place of each weight, summed over H: far less than the
    distance of the largest logit from the mean, unless all are nearly equal.

    Args:
        head_KH: The rows there are.
        pushed_K: True where the id is never output; all False where nobody counted: then it is the plain mean.
    """
    rows_KH = head_KH.double()
    mean_H = rows_KH.mean(dim=0)
    if pushed_K.any():
        mean_H = torch.lerp(rows_KH[pushed_K].mean(dim=0), mean_H, SHARE_OF_ALL)
    return mean_H.to(head_KH.dtype)


def grown_head(head_KH: Tensor, ids_K: Tensor, vocab_size: int, pushed_K: Tensor) -> Tensor:
    """head_VH: each row at its id, the losing row at all others."""
    head_VH = losing_row(head_KH, pushed_K).expand(vocab_size, -1).clone()
    return head_VH.index_copy_(0, ids_K, head_KH)


def head_with_unknown(head_KH: Tensor, pushed_K: Tensor) -> Tensor:
    """head_UH: the unknown token is read and never proposed."""
    return torch.cat([head_KH, losing_row(head_KH, pushed_K)[None]])


def embedding_with_unknown(embedding_VH: Tensor, ids_K: Tensor, unknown_id: int | None) -> Tensor:
    """embedding_UH: the rows of the output ids, and the one that stands for all others.

    Args:
        embedding_VH: Of the draft, which reads every token.
        ids_K: Ascending.
        unknown_id: Whose row was trained for it; None takes the mean of the rows left out.
    """
    if unknown_id is None:
        unknown_H = mean_of_dropped(embedding_VH, ids_K.tolist()).to(embedding_VH.dtype)
    else:
        unknown_H = embedding_VH[unknown_id]
    return torch.cat([embedding_VH[ids_K], unknown_H[None]])
