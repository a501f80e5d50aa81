"""Sequencers whose steps are made beforehand for the shapes that decoding feeds again and again, whoever makes them.

    eval/steps/compiled.py    makes them by torch.compile
    eval/steps/captured.py    makes them by capturing the model's own forward pass in CUDA graphs

Such a step takes so many rows, tokens and slots and no other number. So texts that are done keep their rows, which
are fed filling; fewer tokens than a step takes are filled up; and all slots of the cache are looked at through a mask.
Prompts are read by the model as it is. A step belongs to one cache, whose tensors stay where they are.

Shape suffixes used in this file:
    B = rows, T = tokens fed
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from architectures.draft_vocabulary.head import columns_below
from architectures.errors import UserError
from eval.steps.attention import without_cudnn
from eval.steps.row_cache import RowCache
from eval.steps.row_step import Sight, Span, forward, positions_of
from eval.steps.sequencer import Feed, takes_rows
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
    """Opens sequencers whose steps are made once for each model and shape; an eval.steps.sequencer.Opener.

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
        """A sequencer with every step made; see eval.steps.sequencer.open_sequencer.

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
        """See eval.steps.sequencer.Sequencer; nothing in it waits for the device."""
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
        """See eval.steps.sequencer.Sequencer; the rows of the others stay, and are fed filling."""
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
