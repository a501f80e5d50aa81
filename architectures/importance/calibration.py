"""Calibration text becomes token sequences of one length, on which a target's parts are scored.

Shape suffixes used in this file:
    S = sequences, T = tokens per sequence
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from architectures.importance.calibration_text import calibration_ids


def calibration_sequences(texts: Iterable[str], tokenizer: Any, *, tokens: int, sequence_len: int) -> Tensor:
    """ids_ST: the first tokens // sequence_len sequences of the texts, one after the other.

    Between two texts stands the end-of-sequence token, where the tokenizer has one. No text is read that is not needed.

    Args:
        texts: Plain texts; empty ones are passed over.
        tokenizer: Of the target.
        tokens: At most so many are used, >= sequence_len.
        sequence_len: Tokens per sequence.

    Raises:
        UserError: If the texts are too short.
    """
    ids = calibration_ids(
        texts,
        lambda text: tokenizer.encode(text, add_special_tokens=False),
        tokenizer.eos_token_id,
        tokens=tokens,
        sequence_len=sequence_len,
    )
    return torch.tensor(ids).view(-1, sequence_len)
