"""A model in the middle of one or several sequences, with its key/value cache: fed tokens at positions, gives logits.

Feeding a token at a position forgets whatever stood there and behind it in that row, so a loop that goes back simply
feeds at an earlier position.

    RowSequencer             many rows at once, each with a length of its own
    FixedSequencer           the same with captured steps (eval/decoding/cuda_graphs.py)
    TextSequencer            any decoder-only model, by the cache of transformers: one row, or many that only go on
    TranslationSequencer     rows of an encoder-decoder model, prompts encoded once; of several nothing is taken back

In the cache of rows a token is written at its position, and nothing is ever cut off: what stands behind a row's last
token is written over later, and until then no token looks there. Taking back rejected tokens is therefore no work, and
rows of one batch need not agree on how many they keep.

cuDNN's attention makes a plan for every shape it first meets. On an NVIDIA H200 a training step took 0.35 s more
wherever its width was new (torch 2.11, docs/benchmarks.md), and decoding meets new widths all the time, so it goes
without. Steps of fixed shapes keep cuDNN's: without it a captured step of 7 billion parameters at 1,024 tokens took
1.21 times as long on that GPU, with 32 rows 1.40 times.

Shape suffixes used in this file:
    B = rows, T = tokens fed to the longest row, S = slots, or tokens that an encoder reads of the longest prompt
    V = output ids of the model: all of the vocabulary, or a reduced one (architectures/draft_vocabulary/head.py)
    H = key/value heads, or the width of a hidden state; D = head dimension
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutput

from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.vocabulary_head import columns_below, encoded

# For the calls within; what the process had chosen holds again afterwards. A graph keeps the kernels of its capture.
without_cudnn = partial(sdpa_kernel, [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])

RENAMED = "cache" in signature(create_causal_mask).parameters
CACHE_ARGUMENT = "cache" if RENAMED else "past_key_values"  # of a model's forward pass, to transformers 5.23 and since


def new_cache(model: PreTrainedModel) -> DynamicCache:
    """An empty cache for a decoder-only model.

    Raises:
        UserError: If a layer keeps something that cannot be taken back token by token.
    """
    cache = DynamicCache(config=model.config)
    kinds = sorted({type(layer).__name__ for layer in cache.layers if type(layer) is not DynamicLayer})
    if kinds:
        raise UserError(
            f"{model.config.name_or_path}: its layers keep their past in {', '.join(kinds)}, which cannot be rolled "
            "back after a rejected token. Score a model whose layers all attend to the whole past."
        )
    return cache


def roll_back(cache: DynamicCache, length: int) -> None:
    """Forget everything after the first `length` tokens, all of which the cache must hold."""
    surplus = cache.get_seq_length() - length
    assert surplus >= 0, f"the cache holds {length + surplus} tokens, fewer than the {length} to keep"
    cache.crop(-surplus)  # transformers 5 counts tokens to remove, as a negative number
    assert cache.get_seq_length() == length


class RowCache:
    """What a decoder-only model of transformers takes as past_key_values, together with positions and a mask.

    Args:
        capacity: Tokens a row can hold, until it is widened. One slot more takes what only fills a batch's gaps.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.slots_BT = torch.empty(0)
        self.slots_BHTD: Tensor | None = None  # the same for every number, made by the first layer of a step for all
        self.width = 0

    def write_at(self, slots_BT: Tensor, *, width: int) -> None:
        """Say where the next tokens go, and that the first `width` slots are to be looked at."""
        self.slots_BT, self.width = slots_BT, width
        self.slots_BHTD = None

    def update(
        self, keys_BHTD: Tensor, values_BHTD: Tensor, layer_idx: int, *_args: object, **_kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Called by every layer: writes the keys and values of the tokens fed; returns those to attend to."""
        if layer_idx == len(self.keys):
            self.keys.append(self.capacity_for(keys_BHTD))
            self.values.append(self.capacity_for(values_BHTD))
        if self.slots_BHTD is None:
            self.slots_BHTD = self.slots_BT[:, None, :, None].expand_as(keys_BHTD)
        for cache_BHSD, new_BHTD in ((self.keys[layer_idx], keys_BHTD), (self.values[layer_idx], values_BHTD)):
            cache_BHSD.scatter_(2, self.slots_BHTD, new_BHTD)
        return self.keys[layer_idx][:, :, : self.width], self.values[layer_idx][:, :, : self.width]

    def capacity_for(self, new_BHTD: Tensor) -> Tensor:
        """Zeros, for a slot that is not looked at must still be a number."""
        rows, heads, _, head_dim = new_BHTD.shape
        return new_BHTD.new_zeros(rows, heads, self.capacity + 1, head_dim)

    def get_seq_length(self, _layer_idx: int = 0) -> int:
        """Asked by models that were given no positions; these are always given."""
        raise AssertionError("the lengths of the rows differ: give position_ids and a mask")

    def widen(self, capacity: int) -> None:
        """Raise the capacity to rows of so many tokens."""
        missing, self.capacity = capacity - self.capacity, capacity
        self.replace(lambda cache_BHSD: pad(cache_BHSD, (0, 0, 0, missing)))

    def keep(self, rows: Sequence[int]) -> None:
        """Let go of every row but the given ones."""
        rows_B = torch.tensor(rows, device=self.slots_BT.device)
        self.replace(lambda cache_BHSD: cache_BHSD[rows_B])

    def replace(self, change: Callable[[Tensor], Tensor]) -> None:
        """Change every tensor, one after another: there may be no memory for two of each."""
        for caches in (self.keys, self.values):
            for layer_idx, cache_BHSD in enumerate(caches):
                caches[layer_idx] = change(cache_BHSD)


Span = tuple[int, int]  # the position of a row's first token among those fed, and how many tokens it is fed
WINDOWED = "sliding_attention"


def forward(
    model: PreTrainedModel,
    ids_BT: Tensor,
    positions_BT: Tensor,
    cache: RowCache,
    sight: "Sight",
    *,
    width: int,
    whole: bool,
) -> Tensor:
    """Logits of tokens at positions of their rows, -1 for filling; `width` slots of the cache are looked at."""
    cache.write_at(positions_BT.masked_fill(positions_BT < 0, cache.capacity), width=width)
    positions_BT = positions_BT.clamp(min=0)
    output = model(
        input_ids=ids_BT,
        attention_mask=sight.masks(positions_BT, width),
        position_ids=positions_BT,
        use_cache=True,
        logits_to_keep=0 if whole else 1,
        **{CACHE_ARGUMENT: cache},  # all that a model asks of a Cache
    )
    return output.logits


def positions_of(spans: Sequence[Span], width: int, *, left: bool) -> Tensor:
    """positions_BT of the tokens fed, -1 for filling.

    Args:
        spans: Of each row.
        width: Tokens of the longest row.
        left: Whether tokens stand on the left and filling on the right.
    """
    steps_T = torch.arange(width)
    starts_B1 = torch.tensor([[start] for start, _ in spans])
    if all(count == width for _, count in spans):
        return starts_B1 + steps_T  # as at nearly every step: the rest takes longer than all else here
    counts_B1 = torch.tensor([[count] for _, count in spans])
    steps_BT = steps_T[None] if left else steps_T[None] - (width - counts_B1)
    return (starts_B1 + steps_BT).where((steps_BT >= 0) & (steps_BT < counts_B1), -1)


@dataclass(frozen=True)
class Sight:
    """Which slots a model's tokens look at.

    Attributes:
        window: Tokens a layer with a sliding window sees, itself included; None without one.
        kinds: Kinds of layer where the model asks for a mask of each, else empty.
        added: The number type of masks that are added, as transformers' own attention takes them; None for booleans.
    """

    window: int | None
    kinds: tuple[str, ...]
    added: torch.dtype | None

    @classmethod
    def of(cls, model: PreTrainedModel) -> "Sight":
        """What a model's config says."""
        config = model.config.get_text_config(decoder=True)
        eager = config._attn_implementation == "eager"  # noqa: SLF001  # there is no other way to know
        family = FAMILIES.get(config.model_type)
        kinds = tuple(sorted(set(config.layer_types))) if family is not None and family.mask_per_kind else ()
        return cls(getattr(config, "sliding_window", None), kinds, model.dtype if eager else None)

    def masks(self, positions_BT: Tensor, width: int) -> Any:
        """A mask [B, 1, T, S] over the first `width` slots, or one for each kind of layer."""
        slots_S = torch.arange(width, device=positions_BT.device)
        seen_BTS = slots_S <= positions_BT[:, :, None]
        near_BTS = seen_BTS if self.window is None else seen_BTS & (slots_S > positions_BT[:, :, None] - self.window)
        if not self.kinds:
            return self.as_attention_takes_it(near_BTS)
        return {kind: self.as_attention_takes_it(near_BTS if kind == WINDOWED else seen_BTS) for kind in self.kinds}

    def as_attention_takes_it(self, seen_BTS: Tensor) -> Tensor:
        """Booleans, or numbers to add."""
        if self.added is None:
            return seen_BTS[:, None]
        lowest = torch.finfo(self.added).min
        return torch.zeros_like(seen_BTS, dtype=self.added).masked_fill(~seen_BTS, lowest)[:, None]


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
    """Makes sequencers: `open_sequencer`, or an eval.decoding.cuda_graphs.CapturedSteps."""

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
    feeds: Sequence[Feed] = (),  # noqa: ARG001  # of use where steps are captured
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
    if len(prompts) != 1 and goes_back:
        raise ValueError(f"a model of type {model.config.model_type} decodes one prompt at a time, got {len(prompts)}.")
    if model.config.is_encoder_decoder:
        return TranslationSequencer(model, prompts, vocab_size=vocab_size)
    return TextSequencer(model, num_rows=len(prompts), vocab_size=vocab_size, goes_back=goes_back)


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
    """Rows of a decoder-only model with the cache of transformers: one that may go back, or several that only go on.

    Of several, the first tokens fed are filled on the left; from then on all rows are fed as many, since layers that
    see a window measure it with all that stands between two tokens.
    """

    def __init__(self, model: PreTrainedModel, *, num_rows: int, vocab_size: int, goes_back: bool) -> None:
        self.model, self.goes_back = model, goes_back
        self.columns = columns_below(model, vocab_size)
        self.cache = new_cache(model) if goes_back else DynamicCache(config=model.config)
        self.is_filled = False
        self.real_BT = torch.ones(num_rows, 0, dtype=torch.long, device=model.device)

    @without_cudnn()
    def feed(self, ids_BT: Tensor, spans: Sequence[Span], *, whole: bool) -> Tensor:
        """See Sequencer; rows that only go on are fed where they stand."""
        positions_BT = positions_of(spans, ids_BT.shape[1], left=False).to(ids_BT.device)
        if self.goes_back:
            roll_back(self.cache, spans[0][0])
        else:
            self.is_filled = self.is_filled or min(count for _, count in spans) < ids_BT.shape[1]
            self.real_BT = torch.cat([self.real_BT, (positions_BT >= 0).long()], dim=1)
        output = self.model(
            input_ids=ids_BT,
            attention_mask=self.real_BT if self.is_filled else None,
            position_ids=positions_BT.clamp(min=0),
            use_cache=True,
            logits_to_keep=0 if whole else 1,
            **{CACHE_ARGUMENT: self.cache},
        )
        return output.logits[..., : self.columns]

    def keep(self, rows: Sequence[int]) -> None:
        """See Sequencer."""
        rows_B = torch.tensor(rows, device=self.real_BT.device)
        self.cache.batch_select_indices(rows_B)
        self.real_BT = self.real_BT[rows_B]


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
