"""A model with its key/value cache in the middle of one or several sequences: fed tokens at positions, returns logits.

Feeding a token at a position discards everything at and after it in that row, so a loop that rolls back simply feeds
at an earlier position.

    RowSequencer             many rows at once, each with its own length
    FixedSequencer           the same with captured steps (eval/decoding/cuda_graphs.py)
    TextSequencer            any decoder-only model, with the transformers cache: one row, or several without rollback
    RecurrentSequencer       one row of a model with recurrent layers, which are restored from a copy
    TranslationSequencer     rows of an encoder-decoder model, prompts encoded once; several only without rollback

In the row cache a token is written at its position, and nothing is ever removed: slots after a row's last token are
overwritten later, and until then no token attends to them. Rolling back rejected tokens is therefore free, and the
rows of a batch may accept different numbers of tokens.

cuDNN's attention makes a plan for every shape it first meets. On an NVIDIA H200 a training step took 0.35 s more when
its width was new (torch 2.11, docs/benchmarks.md), and decoding meets new widths constantly, so it does not use cuDNN.
Steps of fixed shapes do: without cuDNN a captured step of 7 billion parameters at 1,024 tokens took 1.21 times as long
on that GPU, and 1.40 times with 32 rows.

Shape suffixes used in this file:
    B = rows, T = tokens fed to the longest row, S = slots, or encoder tokens of the longest prompt
    V = output ids of the model: all of the vocabulary, or a reduced one (architectures/vocabulary_head.py)
    H = key/value heads, or the width of a hidden state; D = head dimension
"""

import copy
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
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutput

from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.vocabulary_head import columns_below, encoded

# Restores the process's own choice afterwards. A CUDA graph keeps the kernels of its capture.
without_cudnn = partial(sdpa_kernel, [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])

RENAMED = "cache" in signature(create_causal_mask).parameters
CACHE_ARGUMENT = "cache" if RENAMED else "past_key_values"  # renamed in transformers' forward pass after 5.23


def is_recurrent(model: PreTrainedModel) -> bool:
    """Return True if a layer keeps a state that cannot be rolled back token by token (Mamba, Gated DeltaNet)."""
    kinds = {type(layer) for layer in DynamicCache(config=model.config).layers}
    return bool(kinds - {DynamicLayer, DynamicSlidingWindowLayer})


def roll_back(cache: DynamicCache, length: int) -> None:
    surplus = cache.get_seq_length() - length
    assert surplus >= 0, f"the cache has {length + surplus} tokens, fewer than the {length} to keep"
    cache.crop(-surplus)  # transformers 5 takes the number of tokens to remove, negative
    assert cache.get_seq_length() == length


class RowCache:
    """Cache that a transformers decoder takes as past_key_values, used with explicit positions and a mask.

    Args:
        capacity: Tokens per row, until widened. One extra slot takes padding.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.slots_BT = torch.empty(0)
        self.slots_BHTD: Tensor | None = None  # equal for all layers, made by the first layer of a step
        self.width = 0

    def write_at(self, slots_BT: Tensor, *, width: int) -> None:
        """Set the slots of the next tokens, and that the first `width` slots are attended to."""
        self.slots_BT, self.width = slots_BT, width
        self.slots_BHTD = None

    def update(
        self, keys_BHTD: Tensor, values_BHTD: Tensor, layer_idx: int, *_args: object, **_kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write the keys and values of one layer; return those to attend to. Called by every layer."""
        if layer_idx == len(self.keys):
            self.keys.append(self.capacity_for(keys_BHTD))
            self.values.append(self.capacity_for(values_BHTD))
        if self.slots_BHTD is None:
            self.slots_BHTD = self.slots_BT[:, None, :, None].expand_as(keys_BHTD)
        for cache_BHSD, new_BHTD in ((self.keys[layer_idx], keys_BHTD), (self.values[layer_idx], values_BHTD)):
            cache_BHSD.scatter_(2, self.slots_BHTD, new_BHTD)
        return self.keys[layer_idx][:, :, : self.width], self.values[layer_idx][:, :, : self.width]

    def capacity_for(self, new_BHTD: Tensor) -> Tensor:
        """Return zeros: slots outside the mask must be finite too."""
        rows, heads, _, head_dim = new_BHTD.shape
        return new_BHTD.new_zeros(rows, heads, self.capacity + 1, head_dim)

    def get_seq_length(self, _layer_idx: int = 0) -> int:
        """Raise AssertionError; models only call this if they were given no positions."""
        raise AssertionError("row lengths differ: pass position_ids and a mask")

    def widen(self, capacity: int) -> None:
        missing, self.capacity = capacity - self.capacity, capacity
        self.replace(lambda cache_BHSD: pad(cache_BHSD, (0, 0, 0, missing)))

    def keep(self, rows: Sequence[int]) -> None:
        rows_B = torch.tensor(rows, device=self.slots_BT.device)
        self.replace(lambda cache_BHSD: cache_BHSD[rows_B])

    def join(self, other: "RowCache", *, rows: int, other_rows: int) -> None:
        """Append the rows of another cache of the same model; one that was never fed has no tensors."""
        for cache, longer in ((self, other), (other, self)):
            if cache.capacity < longer.capacity:
                cache.widen(longer.capacity)
        for own, new in ((self.keys, other.keys), (self.values, other.values)):
            own[:] = own or [cache_BHSD.new_zeros(rows, *cache_BHSD.shape[1:]) for cache_BHSD in new]
            for layer_idx, cache_BHSD in enumerate(own):
                added_BHSD = new[layer_idx] if new else cache_BHSD.new_zeros(other_rows, *cache_BHSD.shape[1:])
                own[layer_idx] = torch.cat([cache_BHSD, added_BHSD])

    def replace(self, change: Callable[[Tensor], Tensor]) -> None:
        """Change every tensor, one at a time, as there may be no memory for a second copy of all."""
        for caches in (self.keys, self.values):
            for layer_idx, cache_BHSD in enumerate(caches):
                caches[layer_idx] = change(cache_BHSD)


Span = tuple[int, int]  # position of a row's first fed token, and number of fed tokens
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
    """Return logits of tokens at positions of their rows, -1 for padding, attending to the first `width` slots."""
    cache.write_at(positions_BT.masked_fill(positions_BT < 0, cache.capacity), width=width)
    positions_BT = positions_BT.clamp(min=0)
    output = model(
        input_ids=ids_BT,
        attention_mask=sight.masks(positions_BT, width),
        position_ids=positions_BT,
        use_cache=True,
        logits_to_keep=0 if whole else 1,
        **{CACHE_ARGUMENT: cache},  # implements all that a model uses of a Cache
    )
    return output.logits


def positions_of(spans: Sequence[Span], width: int, *, left: bool) -> Tensor:
    """Return positions_BT of the fed tokens, -1 for padding.

    Args:
        left: Align tokens left and pad on the right.
    """
    steps_T = torch.arange(width)
    starts_B1 = torch.tensor([[start] for start, _ in spans])
    if all(count == width for _, count in spans):
        return starts_B1 + steps_T  # the usual case, and much faster than the rest
    counts_B1 = torch.tensor([[count] for _, count in spans])
    steps_BT = steps_T[None] if left else steps_T[None] - (width - counts_B1)
    return (starts_B1 + steps_BT).where((steps_BT >= 0) & (steps_BT < counts_B1), -1)


@dataclass(frozen=True)
class Sight:
    """Attention masks of a model.

    Attributes:
        window: Sliding window in tokens, the token itself included; None without one.
        kinds: Kinds of layer, if the model takes one mask for each; else empty.
        added: Dtype of additive masks, as for eager attention; None for boolean masks.
    """

    window: int | None
    kinds: tuple[str, ...]
    added: torch.dtype | None

    @classmethod
    def of(cls, model: PreTrainedModel) -> "Sight":
        config = model.config.get_text_config(decoder=True)
        eager = config._attn_implementation == "eager"  # noqa: SLF001  # there is no public attribute
        family = FAMILIES.get(config.model_type)
        kinds = tuple(sorted(set(config.layer_types))) if family is not None and family.mask_per_kind else ()
        return cls(getattr(config, "sliding_window", None), kinds, model.dtype if eager else None)

    def masks(self, positions_BT: Tensor, width: int) -> Any:
        """Return a mask [B, 1, T, S] over the first `width` slots, or one for each kind of layer."""
        slots_S = torch.arange(width, device=positions_BT.device)
        seen_BTS = slots_S <= positions_BT[:, :, None]
        near_BTS = seen_BTS if self.window is None else seen_BTS & (slots_S > positions_BT[:, :, None] - self.window)
        if not self.kinds:
            return self.as_attention_takes_it(near_BTS)
        return {kind: self.as_attention_takes_it(near_BTS if kind == WINDOWED else seen_BTS) for kind in self.kinds}

    def as_attention_takes_it(self, seen_BTS: Tensor) -> Tensor:
        if self.added is None:
            return seen_BTS[:, None]
        lowest = torch.finfo(self.added).min
        return torch.zeros_like(seen_BTS, dtype=self.added).masked_fill(~seen_BTS, lowest)[:, None]


Feed = tuple[int, bool]  # tokens fed at once to the longest row, and True if logits are needed after all of them


class Sequencer(Protocol):
    """Model interface of the decoding loop."""

    model: PreTrainedModel

    def feed(self, ids_BT: Tensor, spans: Sequence[Span], *, whole: bool) -> Tensor:
        """Feed tokens; return logits after each of them, or only after the last.

        Args:
            ids_BT: Tokens. Shorter rows are padded, on the right if `whole`, else on the left.

        Returns:
            logits [B, T, V] if `whole`, else [B, 1, V]; undefined at padding. With a reduced vocabulary column v is
            not token v, but `tokens_of(v, ids_below(model, vocab_size))`.
        """
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only the given rows."""
        ...


class Opener(Protocol):
    """Factory of sequencers: `open_sequencer`, or an eval.decoding.cuda_graphs.CapturedSteps."""

    def __call__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        *,
        capacity: int,
        vocab_size: int,
        feeds: Sequence[Feed] = (),
        goes_back: bool = True,
    ) -> Sequencer: ...


def open_sequencer(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    capacity: int,
    vocab_size: int,
    feeds: Sequence[Feed] = (),  # noqa: ARG001  # used for captured steps
    goes_back: bool = True,
) -> Sequencer:
    """Return a sequencer for some prompts, none of which has been prefilled.

    Args:
        capacity: Maximum tokens per row.
        vocab_size: Larger ids are dropped from the logits.
        feeds: Steps that will be fed repeatedly after the prompts.
        goes_back: True if tokens will be rolled back.

    Raises:
        UserError: If rotary frequencies would change with the length of the text.
        ValueError: If the model takes one row at a time and there are more.
    """
    reject_changing_rope(model, prompts, capacity)
    if by_rows(model) and (goes_back or sees_all(model, capacity)):
        return RowSequencer(model, capacity=capacity, vocab_size=vocab_size)
    if len(prompts) != 1 and goes_back:
        raise ValueError(f"a model of type {model.config.model_type} decodes one prompt at a time, got {len(prompts)}.")
    if model.config.is_encoder_decoder:
        return TranslationSequencer(model, prompts, vocab_size=vocab_size)
    if goes_back and is_recurrent(model):
        return RecurrentSequencer(model, vocab_size=vocab_size)
    return TextSequencer(model, num_rows=len(prompts), vocab_size=vocab_size, goes_back=goes_back)


def reject_changing_rope(model: PreTrainedModel, prompts: Sequence[Sequence[int]], capacity: int) -> None:
    """Raise UserError if the length of a batch changes rotary frequencies while it is decoded.

    Transformers takes one length for all rows and all tokens of a pass: a text would depend on the other rows, and on
    how many tokens are verified together. Dynamic scaling changes with each token beyond the limit, longrope once.
    """
    config = model.config.get_text_config(decoder=True)
    rope = getattr(config, "rope_parameters", None) or {}
    for each in [rope] if "rope_type" in rope else rope.values():
        limit = each.get("original_max_position_embeddings") or config.max_position_embeddings
        kind, shortest = each.get("rope_type"), min(map(len, prompts), default=0)
        if capacity > limit and (kind == "dynamic" or (kind == "longrope" and shortest <= limit)):
            raise UserError(
                f"{config.name_or_path}: its rotary frequencies (rope_type {kind}) change when a text exceeds {limit} "
                f"tokens, and up to {capacity} are decoded. Use shorter prompts, or fewer new tokens."
            )


def takes_rows(model: PreTrainedModel, *, goes_back: bool = True) -> bool:
    """Return True if a model decodes a batch of sequences of different lengths, with rollback if `goes_back`."""
    return by_rows(model) or not goes_back


def by_rows(model: PreTrainedModel) -> bool:
    """Return True if a model follows the positions and masks of a RowSequencer."""
    family = FAMILIES.get(model.config.get_text_config(decoder=True).model_type)
    return family is not None and family.by_rows


def sees_all(model: PreTrainedModel, length: int) -> bool:
    """Return True if no sliding window is shorter than `length`; a RowCache would keep tokens outside the window."""
    window = getattr(model.config.get_text_config(decoder=True), "sliding_window", None)
    return window is None or length <= window


class RowSequencer:
    """Rows of one model, each with its own length.

    The cache grows by an eighth when full. Sequences that stop early never take the memory of a limit of thousands of
    tokens, and each token is moved about nine times; the cache of transformers moves it at every step.
    """

    def __init__(self, model: PreTrainedModel, *, capacity: int, vocab_size: int) -> None:
        self.model = model
        self.columns = columns_below(model, vocab_size)
        self.most = capacity
        self.cache = RowCache(0)
        self.sight = Sight.of(model)

    @without_cudnn()
    def feed(self, ids_BT: Tensor, spans: Sequence[Span], *, whole: bool) -> Tensor:
        positions_BT = positions_of(spans, ids_BT.shape[1], left=whole).to(ids_BT.device, non_blocking=True)
        width = max((start + count for start, count in spans if count), default=1)
        if width > self.cache.capacity:
            self.cache.widen(min(self.most, width + width // 8))
        logits_BTV = forward(self.model, ids_BT, positions_BT, self.cache, self.sight, width=width, whole=whole)
        return logits_BTV[..., : self.columns]

    def keep(self, rows: Sequence[int]) -> None:
        self.cache.keep(rows)

    def join(self, other: "RowSequencer", *, rows: int, other_rows: int) -> None:
        """Append the rows of another sequencer of the same model, which is not used afterwards."""
        self.most = max(self.most, other.most)
        self.cache.join(other.cache, rows=rows, other_rows=other_rows)


class TextSequencer:
    """Rows of a decoder-only model with the cache of transformers: one with rollback, or several without.

    Several rows are left-padded in the first feed; after it all rows are fed the same number of tokens, since layers
    with a sliding window count the slots between two tokens, padding included.
    """

    def __init__(self, model: PreTrainedModel, *, num_rows: int, vocab_size: int, goes_back: bool) -> None:
        self.model, self.goes_back = model, goes_back
        self.columns = columns_below(model, vocab_size)
        # With rollback, layers with a sliding window keep the tokens outside it, which are masked.
        self.cache = DynamicCache() if goes_back else DynamicCache(config=model.config)
        self.is_filled = False
        self.real_BT = torch.ones(num_rows, 0, dtype=torch.long, device=model.device)

    @without_cudnn()
    def feed(self, ids_BT: Tensor, spans: Sequence[Span], *, whole: bool) -> Tensor:
        """See Sequencer; without rollback the start of a span is ignored."""
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
        rows_B = torch.tensor(rows, device=self.real_BT.device)
        # Recurrent layers have no batch_select_indices.
        self.cache.reorder_cache(rows_B)  # pyright: ignore[reportArgumentType]
        self.real_BT = self.real_BT[rows_B]


class RecurrentSequencer:
    """One row of a model with recurrent layers: a rollback restores a copy of the cache, then reads accepted tokens.

    The copy is of the state before the last feed, so a verification step that rejects tokens costs a second, shorter
    pass. A rollback to before the copy reads the whole row again.
    """

    def __init__(self, model: PreTrainedModel, *, vocab_size: int) -> None:
        self.model = model
        self.columns = columns_below(model, vocab_size)
        self.cache = DynamicCache(config=model.config)
        self.saved, self.saved_length = copy.deepcopy(self.cache), 0
        self.ids_1T = torch.empty(1, 0, dtype=torch.long, device=model.device)

    @without_cudnn()
    def feed(self, ids_BT: Tensor, spans: Sequence[Span], *, whole: bool) -> Tensor:
        start = spans[0][0]
        if start < self.ids_1T.shape[1]:
            if start < self.saved_length:
                self.saved, self.saved_length = DynamicCache(config=self.model.config), 0
            self.cache = copy.deepcopy(self.saved)
            if start > self.saved_length:
                self.read(self.ids_1T[:, self.saved_length : start], self.saved_length, whole=False)
        self.saved, self.saved_length = copy.deepcopy(self.cache), start
        self.ids_1T = torch.cat([self.ids_1T[:, :start], ids_BT], dim=1)
        return self.read(ids_BT, start, whole=whole)[..., : self.columns]

    def read(self, ids_1T: Tensor, start: int, *, whole: bool) -> Tensor:
        """Return the logits of tokens that follow the cache: one pass where the model can continue by several."""
        width = ids_1T.shape[1]
        pieces = [ids_1T] if start == 0 or continues_by_several(self.model) else list(ids_1T.split(1, dim=1))
        logits = []
        for piece in pieces:
            positions_1T = torch.arange(start, start + piece.shape[1], device=piece.device)[None]
            start += piece.shape[1]
            output = self.model(
                input_ids=piece,
                position_ids=positions_1T,
                use_cache=True,
                logits_to_keep=0 if whole else 1,
                **{CACHE_ARGUMENT: self.cache},
            )
            logits.append(output.logits)
        logits_1TV = torch.cat(logits, dim=1)
        assert not whole or logits_1TV.shape[1] == width
        return logits_1TV if whole else logits_1TV[:, -1:]

    def keep(self, rows: Sequence[int]) -> None:
        assert list(rows) == [0], "one row"


PROBE_IDS = (3, 5, 7, 11, 13, 17)
CONTINUES = "_widedraft_continues_by_several"  # of a model, found once


@torch.inference_mode()
def continues_by_several(model: PreTrainedModel) -> bool:
    """Return True if several tokens fed after a cached prefix give the logits of one pass over all.

    Some recurrent layers of transformers ignore their state unless they get a single token.
    """
    known = getattr(model, CONTINUES, None)
    if known is None:
        ids_1T = torch.tensor([PROBE_IDS], device=model.device) % model.config.get_text_config(decoder=True).vocab_size
        half = len(PROBE_IDS) // 2

        def continued(pieces: Sequence[Tensor]) -> Tensor:
            cache = DynamicCache(config=model.config)
            model(input_ids=ids_1T[:, :half], use_cache=True, **{CACHE_ARGUMENT: cache})
            found = [model(input_ids=each, use_cache=True, **{CACHE_ARGUMENT: cache}).logits for each in pieces]
            return torch.cat(found, dim=1).float()

        # One by one is right; several at once must be far nearer to it than to a text without the prefix.
        rest_1T = ids_1T[:, half:]
        single_1TV, several_1TV = continued(rest_1T.split(1, dim=1)), continued([rest_1T])
        fresh_1TV = model(input_ids=rest_1T, use_cache=False).logits.float()
        off, forgotten = ((each - single_1TV).norm() for each in (several_1TV, fresh_1TV))
        known = bool(off <= 0.1 * forgotten)
        setattr(model, CONTINUES, known)
    return known


class TranslationSequencer:
    """Rows of an encoder-decoder model; positions are those of the decoder and equal in all rows.

    They stay equal without rollback, whatever the lengths of the prompts.
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
        """See Sequencer; all rows must be fed the same number of tokens."""
        [(start, count)] = set(spans)
        assert ids_BT.shape == (len(spans), count), f"expected rows of {count} tokens, got {tuple(ids_BT.shape)}"
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
        rows_B = torch.tensor(rows, device=self.encoded_BSH.device)
        self.own_past.batch_select_indices(rows_B)
        self.cache.cross_attention_cache.batch_select_indices(rows_B)
        self.encoded_BSH = self.encoded_BSH[rows_B]
        self.real_BS = None if self.real_BS is None else self.real_BS[rows_B]
