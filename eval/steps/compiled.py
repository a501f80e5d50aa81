"""Steps of fixed shapes made by torch.compile; on a GPU they are CUDA graphs as well.

TorchInductor compiles a step in half a minute or so; for a processor its own freezing packs the weights, which is a
second copy of them in memory. What is fed to the steps is in eval/steps/fixed_steps.py.

Shape suffixes used in this file:
    B = rows, T = tokens fed
"""

import os
import shutil
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from architectures.errors import UserError
from eval.steps.fixed_steps import SHORTEST, FixedStep, FixedSteps, filling, require_fixed_shapes
from eval.steps.row_cache import RowCache
from eval.steps.row_step import Sight, forward
from eval.steps.sequencer import Feed

MOST_SHAPES = 64  # compiled for one model, each in half a minute or so

Step = Callable[..., Tensor]


class Compiler:
    """An eval.steps.fixed_steps.Maker."""

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
    """The forward pass of eval.steps.row_step, to be compiled when it first meets a shape."""
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
