"""The rows of embeddings and output heads: cut or grown to a target's vocab_size, which engines demand of a draft.

Shape suffixes used in this file:
    V = vocabulary entries; X = any further axes
"""

import torch
from torch import Tensor

ROWS_AT_ONCE = 4096  # that are widened to be summed


def fit_rows(rows_VX: Tensor, vocab_size: int) -> Tensor:
    """So many rows: the first ones, or all of them and, for each id beyond, their mean.

    An id without a row is padding of the target's vocabulary, which a draft must never propose. With the mean in the
    output head its logit is the mean of all logits: below the largest, and its probability below 1 / V, whatever the
    hidden state. A row of zeros would have logit 0, the largest of all where a model's logits are negative, as those
    of GPT-2 are. A tied head is the embedding, so that the mean stands there too; a mean among the inputs is a token
    like the average one.

    Args:
        rows_VX: A row, or one entry of a bias, for each id.
        vocab_size: Of the target.
    """
    num_missing = vocab_size - len(rows_VX)
    if num_missing <= 0:
        return rows_VX[:vocab_size]
    chunks = rows_VX.split(ROWS_AT_ONCE)
    mean_X = torch.stack([chunk.double().sum(dim=0) for chunk in chunks]).sum(dim=0) / len(rows_VX)
    return torch.cat([rows_VX, mean_X.to(rows_VX.dtype).expand(num_missing, *rows_VX.shape[1:])])
