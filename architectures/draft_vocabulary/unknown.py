"""One embedding row for every token that a draft does not output, for engines whose draft reads no other tokens.

vLLM's `use_heterogeneous_vocab` gives a draft the tokens of its own tokenizer and one unknown token for all others. A
draft that will be served so learns to read it: some of its inputs are shown as one id while it trains.

Shape suffixes used in this file:
    V = vocabulary entries of the target, H = hidden width
"""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from architectures.errors import UserError
from architectures.small_head.record import CONFIG_KEY, DraftVocabulary, read_draft_vocabulary
from architectures.targets.target import read_config


def unknown_id_of(vocabulary: DraftVocabulary) -> int:
    """The id whose embedding row stands for those that are not output: the recorded one, or the last of them.

    Ids are given by the order in which a tokenizer learned its tokens, so the last is the rarest, or padding that no
    text has: the draft that reads every token misses it least.
    """
    if vocabulary.unknown_id is not None:
        return vocabulary.unknown_id
    output_ids = set(vocabulary.ids)
    return next(id_ for id_ in reversed(range(vocabulary.vocab_size)) if id_ not in output_ids)


def mean_of_dropped(embedding_VH: Tensor, ids: Collection[int]) -> Tensor:
    """mean_H, in float32, of the embedding rows of the ids that are not output."""
    dropped_V = torch.ones(len(embedding_VH), dtype=torch.bool, device=embedding_VH.device)
    dropped_V[torch.tensor(sorted(ids), device=embedding_VH.device)] = False
    return embedding_VH[dropped_V].double().mean(dim=0).float()


def with_unknown(folder: Path) -> DraftVocabulary:
    """The ids of a draft's head, and one that stands for all others; errors as for `small_vocabulary_of`."""
    vocabulary = small_vocabulary_of(folder)
    return replace(vocabulary, unknown_id=unknown_id_of(vocabulary))


def small_vocabulary_of(folder: Path) -> DraftVocabulary:
    """The ids of the head of a draft's folder.

    Raises:
        UserError: If it outputs every id.
    """
    if CONFIG_KEY not in read_config(folder):
        raise UserError(
            f"{folder}: its head says every id, so that distill.unknown_inputs has no input to show as unknown. "
            "Set architecture.vocabulary, or leave it out."
        )
    return read_draft_vocabulary(folder)


def begin_unknown(lm: PreTrainedModel, folder: Path) -> None:
    """Ready a student for unknown inputs: its row for them is the mean of those it stands for, unless it was trained.

    Args:
        lm: Of that folder, not yet trained further.
        folder: A draft with a small head; errors as for `small_vocabulary_of`.
    """
    vocabulary = small_vocabulary_of(folder)
    if vocabulary.unknown_id is None:
        embedding_VH = lm.get_input_embeddings().weight
        assert isinstance(embedding_VH, Tensor)  # as every nn.Embedding has
        with torch.no_grad():
            embedding_VH[unknown_id_of(vocabulary)] = mean_of_dropped(embedding_VH, vocabulary.ids)
