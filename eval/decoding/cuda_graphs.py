"""Steps made beforehand for the shapes that decoding feeds again and again: captured in CUDA graphs, or compiled.

Such a step takes so many rows, tokens and slots and no other number. So sequences that are done keep their rows, which
are fed filling; fewer tokens than a step takes are filled up; and all slots of the cache are looked at through a mask.
Prompts are read by the model as it is. A step belongs to one cache, whose tensors stay where they are.

A CUDA graph holds the kernels that one pass of eval.decoding.kv_cache.forward launched, and the addresses they read and
write: replaying it launches them all at once and runs no Python. So tokens and positions are copied to where the graph
reads them, and its logits stand where the next step of the same model may write: all graphs of a model share one pool
of memory, since only one of them runs at a time. TorchInductor compiles a step in half a minute or so; for a CPU its
freezing packs the weights, which is a second copy of them in memory.

Responses are decoded batch after batch. What was captured for a batch is of no use to one of another shape, and its
cache may be most of the memory: it is let go of before the next is made.

Shape suffixes used in this file:
    B = rows, T = tokens fed, V = vocabulary
"""

import os
import shutil
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from architectures.errors import UserError
from architectures.settings.kinds import How
from architectures.vocabulary_head import columns_below
from eval.decoding.kv_cache import (
    Feed,
    Opener,
    RowCache,
    Sequencer,
    Sight,
    Span,
    forward,
    open_sequencer,
    positions_of,
    takes_rows,
    without_cudnn,
)
from eval.targets.caps import free_bytes
from eval.targets.layered import held_otherwise

SHORTEST = 256  # slots of a cache

FixedStep = Callable[[Tensor, Tensor], Tensor]  # ids_BT, positions_BT -> logits, which the next step may write over


class CannotMakeError(UserError):
    """Steps of a model that cannot be made here.

    Args:
        reason: In a sentence.
        remedy: What the flag's user can do; who asked otherwise is told otherwise.
    """

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason} {remedy}")
        self.reason = reason


class Maker(Protocol):
    """Makes steps; all that compiled and captured ones differ in."""

    def require(self, model: PreTrainedModel) -> None:
        """Raise CannotMakeError where a model's steps cannot be made here."""
        ...

    def capacity(self, needed: int) -> int:
        """Slots of a cache for rows of so many tokens: few different ones, so that few steps have to be made."""
        ...

    def make(self, model: PreTrainedModel, cache: RowCache, feed: Feed, *, rows: int) -> FixedStep:
        """The step of one shape on one cache, ready to be timed; at positions -1, which write nothing of a text."""
        ...


@dataclass
class MadeSteps:
    """A cache, and the steps that were made for it."""

    cache: RowCache
    steps: dict[Feed, FixedStep] = field(default_factory=dict)


class FixedSteps:
    """Opens sequencers whose steps are made once for each model and shape; an eval.decoding.kv_cache.Opener.

    Args:
        make_maker: CompiledSteps and CapturedSteps name theirs.
    """

    def __init__(self, make_maker: Callable[[], Maker]) -> None:
        self.maker = make_maker()
        self.models: dict[int, PreTrainedModel] = {}  # by id, which it keeps taken
        self.free: dict[tuple[int, int, int], list[MadeSteps]] = {}  # by model, rows and capacity; the oldest first

    def require(self, model: PreTrainedModel) -> None:
        """Raise CannotMakeError where a model's steps cannot be made here; asked before anything is measured."""
        self.maker.require(model)

    def forget(self) -> None:
        """Let go of every cache, and the steps that were made for it, that no sequencer holds."""
        self.free.clear()

    def forget_others(self, model: PreTrainedModel, *, rows: int, capacity: int) -> None:
        """The same of all that are of no use to so many texts of so many tokens at most."""
        wanted = (id(model), rows, self.maker.capacity(capacity))
        self.free = {shape: made for shape, made in self.free.items() if shape == wanted}

    def __call__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        *,
        capacity: int,
        vocab_size: int,
        feeds: Sequence[Feed] = (),
        goes_back: bool = True,  # noqa: ARG002  # these always can
    ) -> "FixedSequencer":
        """A sequencer with every step made; see eval.decoding.kv_cache.open_sequencer.

        Raises:
            UserError: If the model takes one row at a time, or nothing here can make its steps.
        """
        self.require(model)
        self.models[id(model)] = model
        rows, capacity = len(prompts), self.maker.capacity(capacity)
        free = self.free.setdefault((id(model), rows, capacity), [])
        made = free.pop(0) if free else MadeSteps(new_row_cache(model, rows=rows, capacity=capacity))
        for feed in sorted(set(feeds) - made.steps.keys()):
            made.steps[feed] = self.maker.make(model, made.cache, feed, rows=rows)
        sequencer = FixedSequencer(model, made, rows=rows, vocab_size=vocab_size, feeds=feeds)
        weakref.finalize(sequencer, free.append, made)
        return sequencer


class FixedSequencer:
    """Rows of one model, as RowSequencer has them, by steps of fixed shapes."""

    def __init__(
        self, model: PreTrainedModel, made: MadeSteps, *, rows: int, vocab_size: int, feeds: Sequence[Feed]
    ) -> None:
        self.model, self.columns = model, columns_below(model, vocab_size)
        self.made, self.feeds = made, sorted(feeds)
        self.num_rows, self.sight = rows, Sight.of(model)
        self.keep_rows(list(range(rows)))

    def feed(self, ids_BT: Tensor, spans: Sequence[Span], *, whole: bool) -> Tensor:
        """See eval.decoding.kv_cache.Sequencer; nothing in it waits for the device."""
        tokens = ids_BT.shape[1]
        width = next((width for width, kind in self.feeds if kind == whole and width >= tokens), None)
        all_spans: list[Span] = [(0, 0)] * self.num_rows
        for row, span in zip(self.rows, spans, strict=True):
            all_spans[row] = span
        ids = ids_BT.new_zeros(self.num_rows, width or tokens)
        (ids[:, :tokens] if whole else ids[:, -tokens:]).index_copy_(0, self.rows_B, ids_BT)
        positions = positions_of(all_spans, width or tokens, left=whole).to(ids.device, non_blocking=True)
        step = partial(self.read_by_model, whole=whole) if width is None else self.made.steps[width, whole]
        logits = step(ids, positions)
        return logits[:, : tokens if whole else 1, : self.columns].index_select(0, self.rows_B)

    @without_cudnn()
    def read_by_model(self, ids_BT: Tensor, positions_BT: Tensor, *, whole: bool) -> Tensor:
        """A step of another shape than those made, as of a prompt."""
        cache = self.made.cache
        return forward(self.model, ids_BT, positions_BT, cache, self.sight, width=cache.capacity, whole=whole)

    def keep(self, rows: Sequence[int]) -> None:
        """See eval.decoding.kv_cache.Sequencer; the rows of the others stay, and are fed filling."""
        self.keep_rows([self.rows[row] for row in rows])

    def keep_rows(self, rows: list[int]) -> None:
        """Those of the texts that are not done; on the device too, since a list as an index would wait for it."""
        self.rows, self.rows_B = rows, torch.tensor(rows, device=self.model.device)


def new_row_cache(model: PreTrainedModel, *, rows: int, capacity: int) -> RowCache:
    """A cache whose tensors are there and stay where they are."""
    cache = RowCache(capacity)
    with without_cudnn():
        forward(model, *filling(model, rows=rows, tokens=1), cache, Sight.of(model), width=1, whole=False)
    return cache


def filling(model: PreTrainedModel, *, rows: int, tokens: int) -> tuple[Tensor, Tensor]:
    """ids_BT and positions_BT of tokens that stand nowhere."""
    ids_BT = torch.zeros(rows, tokens, dtype=torch.int64, device=model.device)
    return ids_BT, torch.full_like(ids_BT, -1)


def require_fixed_shapes(model: PreTrainedModel, flag: str) -> None:
    """Raise CannotMakeError where a model's step is no fixed sequence of kernels."""
    scaling, made, remedy = looks_at_positions(model), f"{flag.removeprefix('--')}d", f"Leave out {flag}."
    if not takes_rows(model):
        what = f"steps of a model of type {model.config.model_type} are not {made} here."
        raise CannotMakeError(f"{model.name_or_path}: {what}", remedy)
    if (held := held_otherwise(model)) is not None:
        raise CannotMakeError(f"{model.name_or_path}: its {held}, so its steps are not {made} here.", remedy)
    if scaling is not None:
        raise CannotMakeError(
            f"{model.name_or_path}: its rotary embedding ({scaling}) is chosen anew at every step by how long the text "
            f"is, so its steps are not {made} here.",
            remedy,
        )


def looks_at_positions(model: PreTrainedModel) -> str | None:
    """The kind of rotary embedding that transformers computes anew from the largest position; None of any other."""
    parameters = getattr(model.config.get_text_config(decoder=True), "rope_parameters", None) or {}
    per_kind = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
    kinds = [str(kind_parameters.get("rope_type", "")) for kind_parameters in per_kind]
    return next((kind for kind in kinds if "dynamic" in kind or kind == "longrope"), None)


WARM_UPS = 3  # passes before a capture, as torch's manual has it: libraries choose kernels and take memory in them

Run = Callable[[], Tensor]
Recorder = Callable[[Run], tuple[Callable[[], None], Tensor]]  # what replays a pass, and where it puts its logits


class Capturer:
    """An eval.decoding.cuda_graphs.Maker.

    Args:
        recorder_on: Makes the recorder of one model, on its device.
    """

    def __init__(self, recorder_on: Callable[[torch.device], Recorder]) -> None:
        self.recorder_on = recorder_on
        self.recorders: dict[int, Recorder] = {}  # by the id of a model, which FixedSteps keeps taken

    def require(self, model: PreTrainedModel) -> None:
        """See Maker."""
        require_fixed_shapes(model, "--capture")
        if id(model) not in self.recorders:
            self.recorders[id(model)] = self.recorder_on(model.device)

    def capacity(self, needed: int) -> int:
        """See Maker; up to a quarter more than is needed, for every slot is read at every step."""
        unit = max(SHORTEST, 1 << (needed - 1).bit_length()) // 8
        return max(SHORTEST, -(-needed // unit) * unit)

    def make(self, model: PreTrainedModel, cache: RowCache, feed: Feed, *, rows: int) -> FixedStep:
        """See Maker."""
        tokens, whole = feed
        ids_BT, positions_BT = filling(model, rows=rows, tokens=tokens)
        run = partial(forward, model, ids_BT, positions_BT, cache, Sight.of(model), width=cache.capacity, whole=whole)
        replay, logits_BTV = self.recorders[id(model)](run)

        def step(new_ids_BT: Tensor, new_positions_BT: Tensor) -> Tensor:
            ids_BT.copy_(new_ids_BT)
            positions_BT.copy_(new_positions_BT)
            replay()
            return logits_BTV

        return step


class CudaRecorder:
    """Captures passes of one model in graphs that share a pool of memory.

    Raises:
        UserError: If the device is no GPU.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type != "cuda":
            raise CannotMakeError(
                f"--capture needs a GPU, and the models are on {device}: what is captured are CUDA graphs.",
                "Use --compile, which is for processors too, or leave out --capture.",
            )
        self.device = device
        self.stream = cast("torch.cuda.Stream", torch.cuda.Stream(device))
        self.first: torch.cuda.CUDAGraph | None = None  # a pool that no graph uses any longer cannot be used again

    def __call__(self, run: Run) -> tuple[Callable[[], None], Tensor]:
        """Run a pass beside the stream of the caller until it is warm, then capture it."""
        caller = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(caller):  # gone back to even after a capture that failed, where torch would stay
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


CapturedSteps = partial(FixedSteps, partial(Capturer, CudaRecorder))  # CapturedSteps() is an Opener: one for all calls


MOST_SHAPES = 64  # compiled for one model, each in half a minute or so

Step = Callable[..., Tensor]


class Compiler:
    """An eval.decoding.cuda_graphs.Maker."""

    def __init__(self) -> None:
        self.compiled: dict[int, Step] = {}  # by the id of a model, which FixedSteps keeps taken

    def require(self, model: PreTrainedModel) -> None:
        """See Maker."""
        require_compilable(model)

    def capacity(self, needed: int) -> int:
        """See Maker; powers of two, for each takes minutes."""
        return max(SHORTEST, 1 << (needed - 1).bit_length())

    def make(self, model: PreTrainedModel, cache: RowCache, feed: Feed, *, rows: int) -> FixedStep:
        """See Maker."""
        compiled = self.compiled.setdefault(id(model), compiled_forward(model))
        tokens, whole = feed
        sight = Sight.of(model)
        for tensor in (*cache.keys, *cache.values):
            torch._dynamo.mark_static_address(tensor)  # noqa: SLF001  # as transformers' StaticCache does

        def step(ids_BT: Tensor, positions_BT: Tensor) -> Tensor:
            torch.compiler.cudagraph_mark_step_begin()
            with torch._dynamo.config.patch(recompile_limit=MOST_SHAPES):  # noqa: SLF001  # 8 unless told otherwise
                return compiled(model, ids_BT, positions_BT, cache, sight, width=cache.capacity, whole=whole)

        for _ in range(2):  # a CUDA graph is recorded the second time
            step(*filling(model, rows=rows, tokens=tokens))
        return step


CompiledSteps = partial(FixedSteps, Compiler)  # CompiledSteps() is an Opener: one for all calls


def compiled_forward(model: PreTrainedModel) -> Step:
    """The forward pass of eval.decoding.kv_cache, to be compiled when it first meets a shape."""
    if model.device.type == "cuda":
        return torch.compile(forward, dynamic=False, fullgraph=True, mode="reduce-overhead")
    return torch.compile(forward, dynamic=False, fullgraph=True, options={"freezing": True})


def require_compilable(model: PreTrainedModel) -> None:
    """Raise UserError where a model's steps cannot be compiled."""
    require_fixed_shapes(model, "--compile")
    if model.device.type == "cpu" and not (os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")):
        raise UserError(
            "--compile: torch needs a C++ compiler to compile for a processor. Install g++, name one in CXX, "
            "or leave out --compile."
        )


def new_opener(how: How) -> Opener:
    """One for all calls: what it has compiled or captured it keeps."""
    if how == "eager":
        return open_sequencer
    return CompiledSteps() if how == "compiled" else CapturedSteps()


MOST_OF_FREE = 0.75  # of a GPU's memory for a cache: prompts are read beside it


def answer_opener(model: PreTrainedModel) -> Opener:
    """What runs a model while it generates responses: captured steps on a GPU, eager ones where those cannot be."""
    if model.device.type != "cuda":
        return open_sequencer
    steps = CapturedSteps()
    try:
        steps.require(model)
    except CannotMakeError as error:
        say(error.reason)
        return open_sequencer
    return BatchSteps(steps)


class BatchSteps:
    """An Opener: captured steps, those of one batch after another.

    A batch whose cache is too large for what is free takes a model's own passes, whose cache grows with its texts.

    Args:
        steps: That are captured.
    """

    def __init__(self, steps: FixedSteps) -> None:
        self.steps = steps
        self.slot_bytes: int | None = None
        self.has_said = False

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
        """See eval.decoding.kv_cache.open_sequencer."""
        self.steps.forget_others(model, rows=len(prompts), capacity=capacity)
        opener: Opener = self.steps if self.fits(model, len(prompts), capacity) else open_sequencer
        return opener(model, prompts, capacity=capacity, vocab_size=vocab_size, feeds=feeds, goes_back=goes_back)

    def fits(self, model: PreTrainedModel, rows: int, capacity: int) -> bool:
        """Whether there is memory for a batch's cache, whole from the beginning; asked of those not there yet."""
        if any(self.steps.free.values()):
            return True
        if self.slot_bytes is None:
            self.slot_bytes = bytes_per_slot(model)
        slots = self.steps.maker.capacity(capacity)
        needed, free = rows * slots * self.slot_bytes, free_bytes(model.device)
        if needed <= MOST_OF_FREE * free:
            return True
        if not self.has_said:
            say(
                f"{model.name_or_path}: {rows} rows of {slots} tokens take a cache of {needed / 2**30:.1f} GiB, and "
                f"{free / 2**30:.1f} are free; such batches are not captured. Fewer rows or new tokens would be."
            )
        self.has_said = True
        return False


@torch.inference_mode()
def bytes_per_slot(model: PreTrainedModel) -> int:
    """What one token of one row takes in a cache, as the model itself fills it."""
    cache = new_row_cache(model, rows=1, capacity=1)
    tensors = [*cache.keys, *cache.values]
    return sum(tensor.numel() * tensor.element_size() // tensor.shape[2] for tensor in tensors)


def say(reason: str) -> None:
    print(f"answers by eager steps, several times slower: {reason}", file=sys.stderr)
