"""A model in the middle of one or several texts: it is fed tokens at positions, and says what comes after them.

Feeding a token at a position forgets whatever stood there and behind it in that row, so a loop that goes back simply
feeds at an earlier position.

    RowSequencer             many rows at once, each with a length of its own (eval/steps/row_cache.py)
    FixedSequencer           the same with compiled or captured steps (eval/steps/fixed_steps.py)
    TextSequencer            one row, by the cache of transformers: any decoder-only model whose layers see everything
    ForwardSequencer         many rows, by the same: any decoder-only model, but nothing can be taken back
    TranslationSequencer     rows of an encoder-decoder model, prompts encoded once; of several nothing is taken back

Shape suffixes used in this file:
    B = rows, T = tokens fed to the longest row, S = slots, or tokens that an encoder reads of the longest prompt
    V = output ids of the model: all of the vocabulary, or a small head's (architectures/draft_vocabulary/head.py)
    H = width of what the encoder makes of a token
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from architectures.draft_vocabulary.head import columns_below
from architectures.families import FAMILIES
from architectures.reading import encoded
from eval.steps.attention import without_cudnn
from eval.steps.cache import CACHE_ARGUMENT, new_cache, roll_back
from eval.steps.row_cache import RowCache
from eval.steps.row_step import Sight, Span, forward, positions_of

Feed = tuple[int, bool]  # tokens fed at once to the longest row, and whether logits are wanted after all of them


class Sequencer(Protocol):
    """What decoding needs of a model."""

    model: PreTrainedModel

    def feed(self, ids_BT: Tensor, spans: Sequence[Span], *, whole: bool) -> Tensor:
        """Feed tokens; returns logits after each of them, or after the last alone.

        Args:
            ids_BT: Tokens. Rows fed fewer are filled, on the right if `whole`, else on the left.
            spans: Of each row.
            whole: Whether logits are wanted after every token.

        Returns:
            logits [B, T, V] if `whole`, else [B, 1, V]; those of filling are without meaning. Of a small head column
            v is not token v, but `tokens_of(v, ids_below(model, vocab_size))`.
        """
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Let go of every row but the given ones."""
        ...


class Opener(Protocol):
    """Makes sequencers: `open_sequencer`, or an eval.steps.fixed_steps.FixedSteps."""

    def __call__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        *,
        capacity: int,
        vocab_size: int,
        feeds: Sequence[Feed] = (),
        goes_back: bool = True,
    ) -> Sequencer:
        """See open_sequencer."""
        ...


def open_sequencer(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    capacity: int,
    vocab_size: int,
    feeds: Sequence[Feed] = (),  # noqa: ARG001  # of use where steps are made beforehand
    goes_back: bool = True,
) -> Sequencer:
    """The sequencer for some prompts, none of which has been read yet.

    Args:
        model: Any causal or encoder-decoder model.
        prompts: One per row.
        capacity: Tokens a row comes to at most.
        vocab_size: Only ids below are spoken of.
        feeds: What it will be fed after the prompts, again and again.
        goes_back: Whether tokens will be taken back.

    Raises:
        UserError: If they will be, and the model's past cannot be, see `new_cache`.
        ValueError: If it takes one row at a time and there are more.
    """
    if by_rows(model) and (goes_back or sees_all(model, capacity)):
        return RowSequencer(model, capacity=capacity, vocab_size=vocab_size)
    if not goes_back and not model.config.is_encoder_decoder:
        return ForwardSequencer(model, num_rows=len(prompts), vocab_size=vocab_size)
    if len(prompts) != 1 and goes_back:
        raise ValueError(f"a model of type {model.config.model_type} decodes one prompt at a time, got {len(prompts)}.")
    if model.config.is_encoder_decoder:
        return TranslationSequencer(model, prompts, vocab_size=vocab_size)
    return TextSequencer(model, vocab_size=vocab_size)


def takes_rows(model: PreTrainedModel, *, goes_back: bool = True) -> bool:
    """Whether a model reads many texts of different lengths at a time, and whether even if tokens are taken back."""
    return by_rows(model) or not goes_back


def by_rows(model: PreTrainedModel) -> bool:
    """Whether a model follows the positions and masks that a RowSequencer gives it."""
    family = FAMILIES.get(model.config.get_text_config(decoder=True).model_type)
    return family is not None and family.by_rows


def sees_all(model: PreTrainedModel, length: int) -> bool:
    """Whether no layer's window is shorter than a text; a RowCache would keep what leaves the window."""
    window = getattr(model.config.get_text_config(decoder=True), "sliding_window", None)
    return window is None or length <= window


class RowSequencer:
    """Rows of one model, each with its own length.

    Its cache grows by an eighth when it is full. Texts that stop early never take what a limit of thousands of
    tokens would, and each token is moved some nine times, where the cache of transformers moves it at every step.
    """

    def __init__(self, model: PreTrainedModel, *, capacity: int, vocab_size: int) -> None:
        self.model = model
        self.columns = columns_below(model, vocab_size)
        self.most = capacity
        self.cache = RowCache(0)
        self.sight = Sight.of(model)

    @without_cudnn()
    def feed(self, ids_BT: Tensor, spans: Sequence[Span], *, whole: bool) -> Tensor:
        """See Sequencer."""
        positions_BT = positions_of(spans, ids_BT.shape[1], left=whole).to(ids_BT.device, non_blocking=True)
        width = max((start + count for start, count in spans if count), default=1)
        if width > self.cache.capacity:
            self.cache.widen(min(self.most, width + width // 8))
        logits_BTV = forward(self.model, ids_BT, positions_BT, self.cache, self.sight, width=width, whole=whole)
        return logits_BTV[..., : self.columns]

    def keep(self, rows: Sequence[int]) -> None:
        """See Sequencer."""
        self.cache.keep(rows)


class TextSequencer:
    """One text of a decoder-only model, with the cache of transformers."""

    def __init__(self, model: PreTrainedModel, *, vocab_size: int) -> None:
        self.model = model
        self.columns = columns_below(model, vocab_size)
        self.cache = new_cache(model)

    @without_cudnn()
    def feed(self, ids_BT: Tensor, spans: Sequence[Span], *, whole: bool) -> Tensor:
        """See Sequencer; of one row, which nothing fills."""
        [(start, count)] = spans
        assert ids_BT.shape == (1, count), f"one row of {count} tokens, got {tuple(ids_BT.shape)}"
        roll_back(self.cache, start)
        output = self.model(
            input_ids=ids_BT, use_cache=True, logits_to_keep=0 if whole else 1, **{CACHE_ARGUMENT: self.cache}
        )
        return output.logits[..., : self.columns]

    def keep(self, rows: Sequence[int]) -> None:
        """See Sequencer."""
        assert list(rows) == [0]


class ForwardSequencer:
    """Rows of a decoder-only model that only ever go on, with the cache of transformers, whatever its layers keep.

    The first tokens fed are filled on the left; from then on all rows are fed as many, since layers that see a window
    measure it with all that stands between two tokens.
    """

    def __init__(self, model: PreTrainedModel, *, num_rows: int, vocab_size: int) -> None:
        self.model = model
        self.columns = columns_below(model, vocab_size)
        self.cache = DynamicCache(config=model.config)
        self.lengths = [0] * num_rows
        self.is_filled = False
        self.real_BT = torch.ones(num_rows, 0, dtype=torch.long, device=model.device)

    @without_cudnn()
    def feed(self, ids_BT: Tensor, spans: Sequence[Span], *, whole: bool) -> Tensor:
        """See Sequencer; each row goes on where it stands, and logits are wanted after its last token alone."""
        starts, counts = zip(*spans, strict=True)
        filling = min(counts) < ids_BT.shape[1]
        assert not whole, "logits after the last token of every row, and no others"
        assert list(starts) == self.lengths, f"rows of {self.lengths} tokens, told to go on at {starts}"
        assert not (filling and any(starts)), f"rows fed {counts} tokens each, and only the first may be filled"
        self.lengths = [start + count for start, count in spans]
        self.is_filled = self.is_filled or filling
        positions_BT = positions_of(spans, ids_BT.shape[1], left=False).to(ids_BT.device)
        self.real_BT = torch.cat([self.real_BT, (positions_BT >= 0).long()], dim=1)
        output = self.model(
            input_ids=ids_BT,
            attention_mask=self.real_BT if self.is_filled else None,
            position_ids=positions_BT.clamp(min=0),
            use_cache=True,
            logits_to_keep=1,
            **{CACHE_ARGUMENT: self.cache},
        )
        return output.logits[..., : self.columns]

    def keep(self, rows: Sequence[int]) -> None:
        """See Sequencer."""
        rows_B = torch.tensor(rows, device=self.real_BT.device)
        self.cache.batch_select_indices(rows_B)
        self.real_BT = self.real_BT[rows_B]
        self.lengths = [self.lengths[row] for row in rows]


class TranslationSequencer:
    """Outputs of an encoder-decoder model: positions are those of the decoder, at which all rows stand alike.

    So they do as long as each only ever goes on, whatever the lengths of their prompts.
    """

    @without_cudnn()
    def __init__(self, model: PreTrainedModel, prompts: Sequence[Sequence[int]], *, vocab_size: int) -> None:
        self.model = model
        self.columns = columns_below(model, vocab_size)
        self.own_past = DynamicCache()
        self.cache = EncoderDecoderCache(self.own_past, DynamicCache())
        width = max(map(len, prompts))
        ids_BS = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in prompts], device=model.device)
        lengths_B1 = torch.tensor([[len(ids)] for ids in prompts], device=model.device)
        is_filled = min(map(len, prompts)) < width
        self.real_BS = torch.arange(width, device=model.device) < lengths_B1 if is_filled else None
        self.encoded_BSH = encoded(model, ids_BS, self.real_BS)

    @without_cudnn()
    def feed(self, ids_BT: Tensor, spans: Sequence[Span], *, whole: bool) -> Tensor:
        """See Sequencer; of rows that are fed as many, which nothing fills."""
        [(start, count)] = set(spans)
        assert ids_BT.shape == (len(spans), count), f"rows of {count} tokens, got {tuple(ids_BT.shape)}"
        roll_back(self.own_past, start)
        output = self.model(
            encoder_outputs=BaseModelOutput(last_hidden_state=self.encoded_BSH),
            attention_mask=self.real_BS,
            decoder_input_ids=ids_BT,
            use_cache=True,
            **{CACHE_ARGUMENT: self.cache},
        )
        logits = output.logits if whole else output.logits[:, -1:]
        return logits[..., : self.columns]

    def keep(self, rows: Sequence[int]) -> None:
        """See Sequencer."""
        rows_B = torch.tensor(rows, device=self.encoded_BSH.device)
        self.own_past.batch_select_indices(rows_B)
        self.cache.cross_attention_cache.batch_select_indices(rows_B)
        self.encoded_BSH = self.encoded_BSH[rows_B]
        self.real_BS = None if self.real_BS is None else self.real_BS[rows_B]
