"""What a model's output head is given when it reads texts, by a decoder alone or by one behind an encoder.

Shape suffixes used in this file:
    B = texts, T = tokens of the longest text, S = tokens that the encoder reads of the longest prompt
    D = tokens that the decoder reads of the longest answer, its start token included; H = hidden width
"""

from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel


class Translation(NamedTuple):
    """Texts as an encoder-decoder model reads them.

    Attributes:
        prompt_BS: What the encoder reads, padded on the right.
        real_BS: Where that is no padding; None where none is.
        said_BD: What the decoder reads: its start token, then the answer, padded on the right.
    """

    prompt_BS: Tensor
    real_BS: Tensor | None
    said_BD: Tensor


def encoded(model: PreTrainedModel, prompt_BS: Tensor, real_BS: Tensor | None) -> Tensor:
    """What the encoder makes of prompts, [B, S, H]."""
    return model.get_encoder()(input_ids=prompt_BS, attention_mask=real_BS, return_dict=True).last_hidden_state


def translated(model: PreTrainedModel, read: Translation) -> Tensor:
    """hidden_BDH of the decoder, as the output head is given it: behind the last norm, and scaled where the model is.

    There is no mask for the decoder: padding stands on the right, where it never looks back at it from.
    """
    states = model.get_decoder()(
        input_ids=read.said_BD,
        encoder_hidden_states=encoded(model, read.prompt_BS, read.real_BS),
        encoder_attention_mask=read.real_BS,
        use_cache=False,
    )
    return for_head(model, states.last_hidden_state)


def for_head(model: PreTrainedModel, hidden_BDH: Tensor) -> Tensor:
    """What the head is given of the last norm's output: T5 whose head is its embedding makes it smaller."""
    if getattr(model.config, "scale_decoder_outputs", False):
        return hidden_BDH * (model.config.d_model**-0.5)
    return hidden_BDH


def translation(input_ids_BT: Tensor, prompt_len_B1: Tensor, *, start_id: int, answer_len: int) -> Translation:
    """Prompts and answers, one after the other in each row, as an encoder-decoder model reads them.

    Args:
        input_ids_BT: Each row's prompt, and behind it its answer.
        prompt_len_B1: Tokens of the prompts.
        start_id: What the decoder reads before the answer.
        answer_len: D, at most what the longest answer has.
    """
    places_BD = answer_places(prompt_len_B1, answer_len).clamp(max=input_ids_BT.shape[1] - 1)
    said_BD = input_ids_BT.gather(1, places_BD)
    said_BD[:, 0] = start_id
    width = int(prompt_len_B1.max())
    real_BS = torch.arange(width, device=prompt_len_B1.device) < prompt_len_B1
    prompt_BS = input_ids_BT[:, :width].masked_fill(~real_BS, 0)
    return Translation(prompt_BS, None if bool(real_BS.all()) else real_BS, said_BD)


def answer_places(prompt_len_B1: Tensor, answer_len: int) -> Tensor:
    """places_BD: where in its row stands what the decoder reads; in the place of its start token, the prompt's last."""
    return prompt_len_B1 - 1 + torch.arange(answer_len, device=prompt_len_B1.device)


def read_text(model: PreTrainedModel, ids_BT: Tensor) -> Tensor:
    """What the head is given of texts without prompts; an encoder reads their first half, the decoder the second."""
    if not model.config.is_encoder_decoder:
        return model.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state
    prompt_len = max(1, ids_BT.shape[1] // 2)
    lengths_B1 = torch.full((len(ids_BT), 1), prompt_len, device=ids_BT.device)
    start_id = model.config.decoder_start_token_id
    read = translation(ids_BT, lengths_B1, start_id=start_id, answer_len=ids_BT.shape[1] - prompt_len + 1)
    return translated(model, read)
