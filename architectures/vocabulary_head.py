"""Output head of a reduced vocabulary in a transformers model, and the embedding row of all tokens it lacks.

vLLM's `use_heterogeneous_vocab` maps all tokens outside the draft's own tokenizer to one unknown token. A draft for
this mode is trained to read it: some of its inputs are replaced by that id during training.

Shape suffixes used in this file:
    K = rows of the head
    H = hidden width
    V = vocabulary entries of the target
    X = any axes before or after
    B = sequences
    T = tokens of the longest sequence
    S = encoder tokens of the longest prompt
    D = decoder tokens of the longest response, including the start token
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from architectures.checkpoint import open_weights
from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.hub import read_config
from architectures.shapes import Shape
from architectures.vocabulary import (
    CONFIG_KEY,
    DRAFT_VOCABULARY_NAME,
    DraftVocabulary,
    read_draft_vocabulary,
)

IDS = "head_ids"  # buffer of the head module
ROWS_AT_ONCE = 4096  # rows summed in float64 at a time


def cut_head(lm: PreTrainedModel, ids_K: Tensor) -> None:
    """Keep only these rows of a causal language model's output head, untied from the input embedding.

    Args:
        ids_K: The token id of each row, ascending, int64.
    """
    old = lm.get_output_embeddings()
    assert isinstance(old, nn.Linear), "a causal language model has a linear output head"
    assert old.bias is None, "no supported family has a bias there"
    head = nn.Linear(old.in_features, len(ids_K), bias=False, device="meta")
    head.weight = nn.Parameter(old.weight.detach()[ids_K].clone())
    head.register_buffer(IDS, ids_K.to(old.weight.device), persistent=False)
    lm.set_output_embeddings(head)
    config = lm.config.get_text_config(decoder=True)
    config.tie_word_embeddings = False
    setattr(config, CONFIG_KEY, len(ids_K))


def head_ids(lm: PreTrainedModel) -> Tensor | None:
    """Return ids_K, the token id of each row of a model's head; None if row k is token k."""
    return getattr(lm.get_output_embeddings(), IDS, None)


def rows_below(ids_K: Tensor, vocab_size: int) -> int:
    """Return the number of rows with ids < vocab_size: the first ones, since ids ascend."""
    return int((ids_K < vocab_size).sum())


def ids_below(lm: PreTrainedModel, vocab_size: int) -> Tensor | None:
    """Return ids_K of the rows with ids < vocab_size, the first ones; None if row k is token k.

    Raises:
        UserError: If there are none: the model shares no output id with a model of that vocabulary.
    """
    ids_K = head_ids(lm)
    if ids_K is None:
        return None
    rows = rows_below(ids_K, vocab_size)
    if rows == 0:
        raise UserError(
            f"{lm.name_or_path}: its smallest output id is {int(ids_K[0])}, but the target has "
            f"only {vocab_size} ids. Create the draft again with ids of its target."
        )
    return ids_K[:rows]


def columns_below(lm: PreTrainedModel, vocab_size: int) -> int:
    """Return the number of logit columns with ids < vocab_size: the first ones."""
    ids_K = ids_below(lm, vocab_size)
    return vocab_size if ids_K is None else len(ids_K)


def tokens_of(rows_X: Tensor, ids_K: Tensor | None) -> Tensor:
    """Return the tokens of rows of a head; row k is token k if ids_K is None."""
    return rows_X if ids_K is None else ids_K[rows_X]


def spread(values_XK: Tensor, ids_K: Tensor, vocab_size: int, *, elsewhere: float) -> Tensor:
    """Return values_XV: each row's value at its id, `elsewhere` at all other ids, as -inf for logits."""
    whole = values_XK.new_full((*values_XK.shape[:-1], vocab_size), elsewhere)
    return whole.index_copy_(-1, ids_K, values_XK)


def with_rows(model_class: type[PreTrainedModel], rows: int) -> type[PreTrainedModel]:
    """Return a subclass of a model class with `rows` rows in the output head, which transformers can load directly.

    Replacing a full head after construction would first fill 500 MiB with random bfloat16 numbers, for seconds, in a
    model of 128k ids and hidden 2048.
    """

    def init(self: PreTrainedModel, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        model_class.__init__(self, config, *args, **kwargs)
        whole = self.get_output_embeddings()
        assert isinstance(whole, nn.Linear)  # see cut_head
        self.set_output_embeddings(nn.Linear(whole.in_features, rows, bias=False))

    return type(model_class.__name__, (model_class,), {"__init__": init, "__module__": model_class.__module__})


def name_rows(lm: PreTrainedModel, ids: Sequence[int]) -> None:
    """Record the token id of each row of a loaded model's head, and restore the class that `with_rows` subclassed."""
    head = lm.get_output_embeddings()
    assert isinstance(head, nn.Linear)  # see with_rows
    lm.__class__ = type(lm).__bases__[0]  # which can be pickled
    head.register_buffer(IDS, torch.tensor(ids, device=head.weight.device), persistent=False)


def read_head(folder: Path, config: Mapping[str, Any]) -> DraftVocabulary | None:
    """Read the ids of the output head of a checkpoint directory; None if it outputs every id.

    Raises:
        UserError: If config.json, draft_vocabulary.json and weights disagree, or the family does not support drafts.
    """
    if CONFIG_KEY not in config:
        if (folder / DRAFT_VOCABULARY_NAME).exists():
            raise UserError(
                f"{folder / DRAFT_VOCABULARY_NAME}: exists, but config.json has no {CONFIG_KEY}, so the head "
                "outputs every id. Use both from one draft, or delete the file."
            )
        return None
    shape = Shape.from_config(config, where=str(folder / "config.json"))
    vocabulary, family = read_draft_vocabulary(folder), FAMILIES[shape.family]
    weights, name = open_weights(folder, base_prefix=family.base_prefix), family.weight("head")
    rows = weights.info[name].size[0] if name in weights.info else 0
    if (shape.head_vocab, shape.vocab) != (len(vocabulary.ids), vocabulary.vocab_size) or rows != len(vocabulary.ids):
        raise UserError(
            f"{folder}: config.json has {shape.head_vocab} head rows for {shape.vocab} ids, "
            f"{DRAFT_VOCABULARY_NAME} {len(vocabulary.ids)} for {vocabulary.vocab_size}, and {name} has {rows}. "
            "Use all three from one draft."
        )
    return vocabulary


def unknown_id_of(vocabulary: DraftVocabulary) -> int:
    """Return the id whose embedding row represents all ids that are not output: the recorded one, or the last of them.

    Tokenizers number tokens in the order they learned them, so the last is the rarest, or padding: the row that a
    draft which reads every token needs least.
    """
    if vocabulary.unknown_id is not None:
        return vocabulary.unknown_id
    output_ids = set(vocabulary.ids)
    return next(id_ for id_ in reversed(range(vocabulary.vocab_size)) if id_ not in output_ids)


def mean_of_dropped(embedding_VH: Tensor, ids: Collection[int]) -> Tensor:
    """Return mean_H, in float32, of the embedding rows of the ids that are not output."""
    dropped_V = torch.ones(len(embedding_VH), dtype=torch.bool, device=embedding_VH.device)
    dropped_V[torch.tensor(sorted(ids), device=embedding_VH.device)] = False
    return embedding_VH[dropped_V].double().mean(dim=0).float()


def with_unknown(folder: Path) -> DraftVocabulary:
    """Return a draft's vocabulary with its unknown_id set; raises as `small_vocabulary_of`."""
    vocabulary = small_vocabulary_of(folder)
    return replace(vocabulary, unknown_id=unknown_id_of(vocabulary))


def small_vocabulary_of(folder: Path) -> DraftVocabulary:
    """Read the reduced vocabulary of a draft's directory; UserError if its head outputs every id."""
    if CONFIG_KEY not in read_config(folder):
        raise UserError(
            f"{folder}: its head outputs every id, so distill.unknown_inputs has no unknown inputs. "
            "Set architecture.vocabulary, or remove it."
        )
    return read_draft_vocabulary(folder)


def begin_unknown(lm: PreTrainedModel, folder: Path) -> None:
    """Set the input row of unknown tokens to the mean of the rows it represents, unless it was trained.

    Args:
        lm: Of that directory, not trained since.
        folder: A draft with a reduced head; raises as `small_vocabulary_of`.
    """
    vocabulary = small_vocabulary_of(folder)
    if vocabulary.unknown_id is None:
        embedding_VH = lm.get_input_embeddings().weight
        assert isinstance(embedding_VH, Tensor)  # as in every nn.Embedding
        with torch.no_grad():
            embedding_VH[unknown_id_of(vocabulary)] = mean_of_dropped(embedding_VH, vocabulary.ids)


def fit_rows(rows_VX: Tensor, vocab_size: int) -> Tensor:
    """Return `vocab_size` rows: the first ones, or all of them followed by copies of their mean.

    An id without a row is padding of the target's vocabulary, which a draft must never propose. With the mean in the
    output head its logit is the mean of all logits: below the largest, and its probability below 1 / V, whatever the
    hidden state. A row of zeros would have logit 0, the largest of all if a model's logits are negative, as in GPT-2.
    A tied head also puts the mean into the embedding, where it reads as an average token.

    Args:
        rows_VX: A row, or one entry of a bias, for each id.
    """
    num_missing = vocab_size - len(rows_VX)
    if num_missing <= 0:
        return rows_VX[:vocab_size]
    chunks = rows_VX.split(ROWS_AT_ONCE)
    mean_X = torch.stack([chunk.double().sum(dim=0) for chunk in chunks]).sum(dim=0) / len(rows_VX)
    return torch.cat([rows_VX, mean_X.to(rows_VX.dtype).expand(num_missing, *rows_VX.shape[1:])])


class Translation(NamedTuple):
    """Inputs of an encoder-decoder model.

    Attributes:
        prompt_BS: Encoder inputs, padded on the right.
        real_BS: False at padding; None if there is none.
        output_BD: Decoder inputs: start token, then the response, padded on the right.
    """

    prompt_BS: Tensor
    real_BS: Tensor | None
    output_BD: Tensor


def encoded(model: PreTrainedModel, prompt_BS: Tensor, real_BS: Tensor | None) -> Tensor:
    return model.get_encoder()(input_ids=prompt_BS, attention_mask=real_BS, return_dict=True).last_hidden_state


def translated(model: PreTrainedModel, read: Translation) -> Tensor:
    """Return the decoder's hidden_BDH as the output head reads it: after the last norm, and scaled if the model does.

    The decoder needs no mask: padding is on the right, and attention is causal.
    """
    states = model.get_decoder()(
        input_ids=read.output_BD,
        encoder_hidden_states=encoded(model, read.prompt_BS, read.real_BS),
        encoder_attention_mask=read.real_BS,
        use_cache=False,
    )
    return for_head(model, states.last_hidden_state)


def for_head(model: PreTrainedModel, hidden_BDH: Tensor) -> Tensor:
    """Scale the last norm's output for the head: T5 with a tied head multiplies by d_model**-0.5."""
    if getattr(model.config, "scale_decoder_outputs", False):
        return hidden_BDH * (model.config.d_model**-0.5)
    return hidden_BDH


def translation(input_ids_BT: Tensor, prompt_len_B1: Tensor, *, start_id: int, response_len: int) -> Translation:
    """Split sequences of prompt and response into the inputs of an encoder-decoder model.

    Args:
        input_ids_BT: Each prompt, followed by its response.
        response_len: D, at most the length of the longest response.
    """
    places_BD = response_places(prompt_len_B1, response_len).clamp(max=input_ids_BT.shape[1] - 1)
    output_BD = input_ids_BT.gather(1, places_BD)
    output_BD[:, 0] = start_id
    width = int(prompt_len_B1.max())
    real_BS = torch.arange(width, device=prompt_len_B1.device) < prompt_len_B1
    prompt_BS = input_ids_BT[:, :width].masked_fill(~real_BS, 0)
    return Translation(prompt_BS, None if bool(real_BS.all()) else real_BS, output_BD)


def response_places(prompt_len_B1: Tensor, response_len: int) -> Tensor:
    """Return places_BD: the row position of each decoder input; for the start token that of the last prompt token."""
    return prompt_len_B1 - 1 + torch.arange(response_len, device=prompt_len_B1.device)


def read_text(model: PreTrainedModel, ids_BT: Tensor) -> Tensor:
    """Return the head's input for text without prompts; an encoder reads the first half, the decoder the second."""
    if not model.config.is_encoder_decoder:
        return model.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state
    prompt_len = max(1, ids_BT.shape[1] // 2)
    lengths_B1 = torch.full((len(ids_BT), 1), prompt_len, device=ids_BT.device)
    start_id = model.config.decoder_start_token_id
    read = translation(ids_BT, lengths_B1, start_id=start_id, response_len=ids_BT.shape[1] - prompt_len + 1)
    return translated(model, read)
