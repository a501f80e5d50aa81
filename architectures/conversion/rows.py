"""The rows of head and embedding in each form: pure functions of tensors.

Shape suffixes used in this file:
    K = ids that the draft says, V = vocabulary entries of its target, H = hidden width
    U = K + 1: the ids said, and the unknown token last
"""

import torch
from torch import Tensor

from architectures.draft_vocabulary.unknown import mean_of_dropped


def losing_row(head_KH: Tensor) -> Tensor:
    """row_H for an id that the draft must never propose: the mean of the head's rows, in their number type.

    Its logit is the mean of the K logits whatever the hidden state, since a head has no bias: at most the largest, and
    as large only where all K are equal. A softcap keeps the order. No row of weights alone could do better there: with
    a hidden state of zeros every row's logit is 0. So greedily the draft proposes what the small head proposes, but
    for a step on which the small head prefers none of its ids, where argmax takes the lowest id of all.

    Rounding shifts the mean's logit by at most half a unit in the last place of its weights, summed over H: far less
    than the distance of the largest logit from the mean, unless all are nearly equal.
    """
    return head_KH.double().mean(dim=0).to(head_KH.dtype)


def grown_head(head_KH: Tensor, ids_K: Tensor, vocab_size: int) -> Tensor:
    """head_VH: each row at its id, the losing row at all others."""
    head_VH = losing_row(head_KH).expand(vocab_size, -1).clone()
    return head_VH.index_copy_(0, ids_K, head_KH)


def head_with_unknown(head_KH: Tensor) -> Tensor:
    """head_UH: the unknown token is read and never proposed."""
    return torch.cat([head_KH, losing_row(head_KH)[None]])


def embedding_with_unknown(embedding_VH: Tensor, ids_K: Tensor, unknown_id: int | None) -> Tensor:
    """embedding_UH: the rows of the ids said, and the one that stands for all others.

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
