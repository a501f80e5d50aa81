"""Steps captured in CUDA graphs, for the shapes that decoding feeds repeatedly.

Such a step has a fixed number of rows, tokens and slots. So finished sequences keep their rows, which are fed padding;
fewer tokens are padded; and all slots of the cache are attended to through a mask. Prompts are prefilled without
capture. A step belongs to one cache, whose tensors stay in place.

A CUDA graph holds the kernels that one pass of eval.decoding.kv_cache.forward launched, and the addresses they read
and write: replaying it launches them all at once and runs no Python. So tokens and positions are copied to the graph's
inputs, and its logits may be overwritten by the next step of the same model: all graphs of a model share one memory
pool, since only one of them runs at a time.

Responses are decoded batch after batch. Graphs captured for a batch cannot serve one of another shape, and its cache
may be most of the memory: it is freed before the next is made.

Shape suffixes used in this file:
    B = rows, T = tokens fed, V = vocabulary
"""

import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from architectures.errors import UserError
from architectures.settings import How
from architectures.vocabulary_head import columns_below
from eval.decoding import kv_cache
from eval.large_targets import free_bytes, held_otherwise

SHORTEST = 256  # slots of a cache
WARM_UPS = 3  # passes before a capture, as in torch's manual: libraries choose kernels and allocate memory in them
MOST_OF_FREE = 0.75  # of a GPU's memory for a cache; prefill needs the rest

StepsKey = tuple[PreTrainedModel, int, int]  # model, rows and capacity of its cache
CapturedStep = Callable[[Tensor, Tensor], Tensor]  # ids_BT, positions_BT -> logits, which the next step may overwrite
Run = Callable[[], Tensor]
Recorder = Callable[[Run], tuple[Callable[[], None], Tensor]]  # replays a pass; its output logits


def why_not_captured(model: PreTrainedModel) -> str | None:
    """Return why a model's step is not a fixed sequence of kernels; None if it is."""
    rope = getattr(model.config.get_text_config(decoder=True), "rope_parameters", None) or {}
    kinds = [each.get("rope_type", "") for each in (rope, *rope.values()) if isinstance(each, dict)]
    at_positions = [kind for kind in kinds if "dynamic" in kind or kind == "longrope"]
    if not kv_cache.takes_rows(model):
        reason = f"CUDA graphs are not supported for model type {model.config.model_type}."
    elif (held := held_otherwise(model)) is not None:
        reason = f"its {held}, which CUDA graphs do not support."
    elif at_positions:
        reason = f"its rotary embedding ({at_positions[0]}) depends on the sequence length."
    else:
        return None
    return f"{model.name_or_path}: {reason}"


class CudaRecorder:
    """Captures passes of one model in graphs that share a memory pool.

    Raises:
        UserError: If the device is not a GPU.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type != "cuda":
            raise UserError(f"--capture needs a GPU, but the models are on {device}. Remove --capture.")
        self.device = device
        self.stream = cast("torch.cuda.Stream", torch.cuda.Stream(device))
        self.first: torch.cuda.CUDAGraph | None = None  # keeps the pool alive: without graphs it cannot be reused

    def __call__(self, run: Run) -> tuple[Callable[[], None], Tensor]:
        """Warm up a pass on a side stream, then capture it."""
        caller = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(caller):  # after a failed capture torch would stay on the side stream
            self.stream.wait_stream(caller)
            with torch.cuda.stream(self.stream):
                for _ in range(WARM_UPS):
                    run()
            caller.wait_stream(self.stream)
            graph, pool = torch.cuda.CUDAGraph(), None if self.first is None else self.first.pool()
            with torch.cuda.graph(graph, pool=pool, stream=self.stream, capture_error_mode="thread_local"):
                made = run()
            self.first = self.first or graph
        return graph.replay, made


@dataclass
class MadeSteps:
    """A cache and the steps captured for it."""

    cache: kv_cache.RowCache
    steps: dict[kv_cache.Feed, CapturedStep] = field(default_factory=dict)


class CapturedSteps:
    """Opener (eval.decoding.kv_cache.Opener) whose steps are captured once for each model and shape."""

    def __init__(self, recorder_on: Callable[[torch.device], Recorder] = CudaRecorder) -> None:
        self.recorder_on = recorder_on
        self.recorders: dict[PreTrainedModel, Recorder] = {}
        self.free: dict[StepsKey, list[MadeSteps]] = {}  # the oldest first

    def require(self, model: PreTrainedModel) -> None:
        """Raise UserError if a model's steps cannot be captured; call before measuring anything."""
        if (reason := why_not_captured(model)) is not None:
            raise UserError(f"{reason} Remove --capture.")
        if model not in self.recorders:
            self.recorders[model] = self.recorder_on(model.device)

    def forget(self) -> None:
        self.free.clear()

    def __call__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        *,
        capacity: int,
        vocab_size: int,
        feeds: Sequence[kv_cache.Feed] = (),
        goes_back: bool = True,  # noqa: ARG002  # always supported
    ) -> kv_cache.Sequencer:
        """Return a sequencer with every step captured; see eval.decoding.kv_cache.open_sequencer and `require`."""
        self.require(model)
        rows, capacity = len(prompts), captured_capacity(capacity)
        free = self.free.setdefault((model, rows, capacity), [])
        made = free.pop(0) if free else MadeSteps(new_row_cache(model, rows=rows, capacity=capacity))
        for feed in sorted(set(feeds) - made.steps.keys()):
            made.steps[feed] = self.make(model, made.cache, feed, rows=rows)
        sequencer = FixedSequencer(model, made, rows=rows, vocab_size=vocab_size, feeds=feeds)
        weakref.finalize(sequencer, free.append, made)
        return sequencer

    def make(self, model: PreTrainedModel, cache: kv_cache.RowCache, feed: kv_cache.Feed, *, rows: int) -> CapturedStep:
        """Capture the step of one shape on one cache, at positions -1, which write only to the padding slot."""
        tokens, whole = feed
        ids_BT, positions_BT = filling(model, rows=rows, tokens=tokens)
        run = partial(
            kv_cache.forward,
            model,
            ids_BT,
            positions_BT,
            cache,
            kv_cache.Sight.of(model),
            width=cache.capacity,
            whole=whole,
        )
        replay, logits_BTV = self.recorders[model](run)

        def step(new_ids_BT: Tensor, new_positions_BT: Tensor) -> Tensor:
            ids_BT.copy_(new_ids_BT)
            positions_BT.copy_(new_positions_BT)
            replay()
            return logits_BTV

        return step


def captured_capacity(needed: int) -> int:
    """Round a capacity up to one of few sizes, by at most a quarter (at least SHORTEST)."""
    unit = max(SHORTEST, 1 << (needed - 1).bit_length()) // 8
    return max(SHORTEST, -(-needed // unit) * unit)


class FixedSequencer:
    """Rows of one model, as in RowSequencer, by steps of fixed shapes."""

    def __init__(
        self, model: PreTrainedModel, made: MadeSteps, *, rows: int, vocab_size: int, feeds: Sequence[kv_cache.Feed]
    ) -> None:
        self.model, self.columns = model, columns_below(model, vocab_size)
        self.made, self.feeds = made, sorted(feeds)
        self.num_rows, self.sight = rows, kv_cache.Sight.of(model)
        self.keep_rows(list(range(rows)))

    def feed(self, ids_BT: Tensor, spans: Sequence[kv_cache.Span], *, whole: bool) -> Tensor:
        """See eval.decoding.kv_cache.Sequencer; does not wait for the device."""
        tokens = ids_BT.shape[1]
        width = next((width for width, kind in self.feeds if kind == whole and width >= tokens), None)
        all_spans: list[kv_cache.Span] = [(0, 0)] * self.num_rows
        for row, span in zip(self.rows, spans, strict=True):
            all_spans[row] = span
        ids = ids_BT.new_zeros(self.num_rows, width or tokens)
        (ids[:, :tokens] if whole else ids[:, -tokens:]).index_copy_(0, self.rows_B, ids_BT)
        positions = kv_cache.positions_of(all_spans, width or tokens, left=whole).to(ids.device, non_blocking=True)
        step = partial(self.read_by_model, whole=whole) if width is None else self.made.steps[width, whole]
        logits = step(ids, positions)
        return logits[:, : tokens if whole else 1, : self.columns].index_select(0, self.rows_B)

    @kv_cache.without_cudnn()
    def read_by_model(self, ids_BT: Tensor, positions_BT: Tensor, *, whole: bool) -> Tensor:
        """Run a step of a shape that was not captured, such as a prompt."""
        cache = self.made.cache
        return kv_cache.forward(self.model, ids_BT, positions_BT, cache, self.sight, width=cache.capacity, whole=whole)

    def keep(self, rows: Sequence[int]) -> None:
        """See eval.decoding.kv_cache.Sequencer; dropped rows stay and are fed padding."""
        self.keep_rows([self.rows[row] for row in rows])

    def keep_rows(self, rows: list[int]) -> None:
        """Set the unfinished rows; as a tensor too, since indexing with a list would wait for the device."""
        self.rows, self.rows_B = rows, torch.tensor(rows, device=self.model.device)


def new_row_cache(model: PreTrainedModel, *, rows: int, capacity: int) -> kv_cache.RowCache:
    cache = kv_cache.RowCache(capacity)
    with kv_cache.without_cudnn():
        kv_cache.forward(
            model, *filling(model, rows=rows, tokens=1), cache, kv_cache.Sight.of(model), width=1, whole=False
        )
    return cache


def filling(model: PreTrainedModel, *, rows: int, tokens: int) -> tuple[Tensor, Tensor]:
    ids_BT = torch.zeros(rows, tokens, dtype=torch.int64, device=model.device)
    return ids_BT, torch.full_like(ids_BT, -1)


def new_opener(how: How) -> kv_cache.Opener:
    """Return an opener to share among all calls: it keeps its captured steps."""
    return kv_cache.open_sequencer if how == "eager" else CapturedSteps()


def generation_opener(model: PreTrainedModel) -> kv_cache.Opener:
    """Return the opener for generating responses: captured steps on a GPU, eager ones if those are not supported."""
    if model.device.type != "cuda":
        return kv_cache.open_sequencer
    if (reason := why_not_captured(model)) is not None:
        warn_slow(reason)
        return kv_cache.open_sequencer
    return BatchSteps(CapturedSteps())


class BatchSteps:
    """Opener of captured steps that keeps only those of the current batch shape.

    A batch whose cache does not fit into free memory runs eagerly, with a cache that grows with its sequences.
    """

    def __init__(self, steps: CapturedSteps) -> None:
        self.steps = steps
        self.has_warned = False

    def __call__(
        self, model: PreTrainedModel, prompts: Sequence[Sequence[int]], *, capacity: int, **how: Any
    ) -> kv_cache.Sequencer:
        shape = model, len(prompts), captured_capacity(capacity)
        self.steps.free = {key: made for key, made in self.steps.free.items() if key == shape}
        opener: kv_cache.Opener = self.steps if self.fits(model, len(prompts), shape[2]) else kv_cache.open_sequencer
        return opener(model, prompts, capacity=capacity, **how)

    def fits(self, model: PreTrainedModel, rows: int, slots: int) -> bool:
        """Return True if a batch's full cache exists already or fits into memory."""
        if any(self.steps.free.values()):
            return True
        needed, free = rows * slots * bytes_per_slot(model), free_bytes(model.device)
        if needed <= MOST_OF_FREE * free:
            return True
        if not self.has_warned:
            warn_slow(
                f"{model.name_or_path}: the KV cache of {rows} x {slots} tokens needs {needed / 2**30:.1f} GiB, but "
                f"{free / 2**30:.1f} are free; not captured. Use a smaller batch or fewer new tokens."
            )
        self.has_warned = True
        return False


@torch.inference_mode()
def bytes_per_slot(model: PreTrainedModel) -> int:
    cache = new_row_cache(model, rows=1, capacity=1)
    tensors = [*cache.keys, *cache.values]
    return sum(tensor.numel() * tensor.element_size() // tensor.shape[2] for tensor in tensors)


def warn_slow(reason: str) -> None:
    print(f"generating without CUDA graphs, several times slower: {reason}", file=sys.stderr)
