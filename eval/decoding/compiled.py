"""Steps of a model compiled for the shapes that decoding feeds again and again; on a GPU they are CUDA graphs as well.

A compiled step takes so many rows, tokens and slots and no other number. So texts that are done keep their rows, which
are fed filling; fewer tokens than a step takes are filled up; and all slots of the cache are looked at through a mask.
Prompts are read by the model as it is. `torch.compile` makes the steps, with TorchInductor, whose own freezing packs
the weights for a processor: that is a second copy of them in memory.

Shape suffixes used in this file:
    B = rows, T = tokens fed, V = vocabulary
"""

import os
import shutil
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from architectures.errors import UserError
from eval.decoding.row_cache import RowCache
from eval.decoding.row_step import Sight, Span, forward, positions_of
from eval.decoding.sequencer import Feed, takes_rows

SHORTEST = 256  # slots of a cache; longer ones are powers of two, so that few lengths have to be compiled
MOST_SHAPES = 64  # compiled for one model, each in half a minute or so

Step = Callable[..., Tensor]


class CompiledSteps:
    """Opens sequencers whose steps are compiled once for each model and shape; an eval.decoding.sequencer.Opener."""

    def __init__(self) -> None:
        self.compiled: dict[int, tuple[PreTrainedModel, Step]] = {}  # by the model's id, which it keeps taken
        self.free: dict[tuple[int, int, int], list[RowCache]] = {}  # by model, rows and capacity; the oldest first
        self.seen: dict[int, set[Feed]] = {}  # what has been compiled, by the id of a cache, which is never let go

    def __call__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        *,
        capacity: int,
        vocab_size: int,
        feeds: Sequence[Feed] = (),
        goes_back: bool = True,  # noqa: ARG002  # these always can
    ) -> "CompiledSequencer":
        """A sequencer with every step compiled; see eval.decoding.sequencer.open_sequencer.

        Raises:
            UserError: If the model takes one row at a time, or nothing here can compile it.
        """
        require_compilable(model)
        capacity = max(SHORTEST, 1 << (capacity - 1).bit_length())
        _, step = self.compiled.setdefault(id(model), (model, compiled_forward(model)))
        caches = self.free.setdefault((id(model), len(prompts), capacity), [])
        cache = caches.pop(0) if caches else new_row_cache(model, rows=len(prompts), capacity=capacity)
        sequencer = CompiledSequencer(model, step, cache, rows=len(prompts), vocab_size=vocab_size, feeds=feeds)
        weakref.finalize(sequencer, caches.append, cache)
        for feed in set(feeds) - self.seen.setdefault(id(cache), set()):
            sequencer.compile(feed)  # a CUDA graph reads and writes one cache and no other
            self.seen[id(cache)].add(feed)
        return sequencer


class CompiledSequencer:
    """Rows of one model, as RowSequencer has them, by compiled steps."""

    def __init__(
        self,
        model: PreTrainedModel,
        step: Step,
        cache: RowCache,
        *,
        rows: int,
        vocab_size: int,
        feeds: Sequence[Feed],
    ) -> None:
        self.model, self.vocab_size = model, vocab_size
        self.step, self.cache, self.feeds = step, cache, sorted(feeds)
        self.num_rows, self.sight = rows, Sight.of(model)
        self.rows = list(range(rows))  # of the texts that are not done

    def feed(self, ids_BT: Tensor, spans: Sequence[Span], *, whole: bool) -> Tensor:
        """See eval.decoding.sequencer.Sequencer."""
        tokens = ids_BT.shape[1]
        width = next((width for width, kind in self.feeds if kind == whole and width >= tokens), None)
        all_spans: list[Span] = [(0, 0)] * self.num_rows
        for row, span in zip(self.rows, spans, strict=True):
            all_spans[row] = span
        ids = ids_BT.new_zeros(self.num_rows, width or tokens)
        ids[self.rows, slice(tokens) if whole else slice(-tokens, None)] = ids_BT
        positions = positions_of(all_spans, width or tokens, left=whole).to(ids.device)
        logits = self.run(ids, positions, whole=whole, compiled=width is not None)
        return logits[self.rows, : tokens if whole else 1, : self.vocab_size]

    def run(self, ids_BT: Tensor, positions_BT: Tensor, *, whole: bool, compiled: bool) -> Tensor:
        """One step; what stays the same from call to call is told by the shapes."""
        arguments: dict[str, Any] = {"width": self.cache.capacity, "whole": whole}
        if not compiled:
            return forward(self.model, ids_BT, positions_BT, self.cache, self.sight, **arguments)
        torch.compiler.cudagraph_mark_step_begin()
        with torch._dynamo.config.patch(recompile_limit=MOST_SHAPES):  # noqa: SLF001  # 8 unless told otherwise
            return self.step(self.model, ids_BT, positions_BT, self.cache, self.sight, **arguments)

    def compile(self, feed: Feed) -> None:
        """Have the step of one shape made, by feeding it filling."""
        tokens, whole = feed
        ids_BT = torch.zeros(self.num_rows, tokens, dtype=torch.int64, device=self.model.device)
        for _ in range(2):  # a CUDA graph is recorded the second time
            self.run(ids_BT, torch.full_like(ids_BT, -1), whole=whole, compiled=True)

    def keep(self, places: Sequence[int]) -> None:
        """See eval.decoding.sequencer.Sequencer; the rows of the others stay, and are fed filling."""
        self.rows = [self.rows[place] for place in places]


def compiled_forward(model: PreTrainedModel) -> Step:
    """The forward pass of eval.decoding.sequencer, to be compiled when it first meets a shape."""
    if model.device.type == "cuda":
        return torch.compile(forward, dynamic=False, fullgraph=True, mode="reduce-overhead")
    return torch.compile(forward, dynamic=False, fullgraph=True, options={"freezing": True})


def new_row_cache(model: PreTrainedModel, *, rows: int, capacity: int) -> RowCache:
    """A cache whose tensors are there and stay where they are."""
    cache = RowCache(capacity)
    ids_B1 = torch.zeros(rows, 1, dtype=torch.int64, device=model.device)
    forward(model, ids_B1, torch.full_like(ids_B1, -1), cache, Sight.of(model), width=1, whole=False)
    for tensor in (*cache.keys, *cache.values):
        torch._dynamo.mark_static_address(tensor)  # noqa: SLF001  # as transformers' StaticCache does
    return cache


def require_compilable(model: PreTrainedModel) -> None:
    """Raise UserError where a model's steps cannot be compiled."""
    if not takes_rows(model):
        raise UserError(
            f"{model.name_or_path}: steps of a model of type {model.config.model_type} are not compiled here. "
            "Leave out --compile."
        )
    if model.device.type == "cpu" and not (os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")):
        raise UserError(
            "--compile: torch needs a C++ compiler to compile for a processor. Install g++, name one in CXX, "
            "or leave out --compile."
        )
