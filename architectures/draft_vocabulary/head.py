"""An output head with a row for each id that a draft can say, in a transformers model.

Shape suffixes used in this file:
    K = rows of the head, H = hidden width, V = vocabulary entries of the target, X = any axes before
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from architectures.draft_vocabulary.record import CONFIG_KEY, read_draft_vocabulary
from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.weights import open_weights

IDS = "head_ids"  # buffer of the head module


def put_head(lm: PreTrainedModel, weight_KH: Tensor, ids_K: Tensor) -> None:
    """Give a model a head of its own with these rows; its input embedding stays.

    Args:
        lm: A causal language model whose head has no bias.
        weight_KH: Rows, in the model's number type.
        ids_K: The token id of each row, ascending, int64.
    """
    head = nn.Linear(weight_KH.shape[1], len(weight_KH), bias=False, device="meta")
    head.weight = nn.Parameter(weight_KH)
    head.register_buffer(IDS, ids_K, persistent=False)
    lm.set_output_embeddings(head)
    config = lm.config.get_text_config(decoder=True)
    config.tie_word_embeddings = False
    setattr(config, CONFIG_KEY, len(weight_KH))


def cut_head(lm: PreTrainedModel, ids_K: Tensor) -> None:
    """Cut the head of a model that can say everything down to some ids."""
    old = lm.get_output_embeddings()
    assert isinstance(old, nn.Linear), "a causal language model has a linear output head"
    assert old.bias is None, "no family drafts are cut from has a bias there"
    put_head(lm, old.weight.detach()[ids_K].clone(), ids_K.to(old.weight.device))


def head_ids(lm: PreTrainedModel) -> Tensor | None:
    """ids_K, what each row of a model's head says; None where row k is token k."""
    return getattr(lm.get_output_embeddings(), IDS, None)


def rows_below(ids_K: Tensor, vocab_size: int) -> int:
    """How many rows say ids that are smaller: the first ones, since ids ascend."""
    return int((ids_K < vocab_size).sum())


def spread(values_XK: Tensor, ids_K: Tensor, vocab_size: int, *, elsewhere: float) -> Tensor:
    """values_XV: each row's value at its id, and one value at all other ids: -inf of logits, 0 of probabilities."""
    whole = values_XK.new_full((*values_XK.shape[:-1], vocab_size), elsewhere)
    return whole.index_copy_(-1, ids_K, values_XK)


def load_head(folder: Path, lm: PreTrainedModel) -> None:
    """Give a model that transformers made of a draft's folder the head that its weight file holds.

    Args:
        folder: A checkpoint whose config.json has head_vocab_size.
        lm: Made with a head of as many rows as the embedding, which is replaced.

    Raises:
        UserError: If the ids are not there or not those of the head.
    """
    config, found = lm.config.get_text_config(decoder=True), read_draft_vocabulary(folder)
    family = FAMILIES[config.model_type]
    weights, name = open_weights(folder, base_prefix=family.base_prefix), family.weight("head")
    stated = (getattr(config, CONFIG_KEY), config.vocab_size)
    sizes = (len(found.ids), found.vocab_size)
    rows = weights.info[name].size[0] if name in weights.info else 0
    if stated != sizes or rows != len(found.ids):
        raise UserError(
            f"{folder}: config.json says {stated[0]} rows of the head for {stated[1]} ids, draft_vocabulary.json "
            f"{sizes[0]} for {sizes[1]}, and {name} has {rows}. Take all three from one draft."
        )
    embedding = lm.get_input_embeddings().weight
    assert isinstance(embedding, Tensor)  # as every nn.Embedding has
    weight_KH = weights.read(name).to(device=embedding.device, dtype=embedding.dtype)
    put_head(lm, weight_KH, torch.tensor(found.ids, device=embedding.device))
