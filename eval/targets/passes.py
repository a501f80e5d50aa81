"""Many forward passes of a target. Where its layers are on the disk, all texts go through one before the next is read.

Every pass is the model's own call, interrupted: it runs up to the layer whose turn it is, what that layer gives is
kept, and the call is left. At the next layer's turn the call begins again, and layers that had theirs give what was
kept of the last one, which is all that a layer hands on. So nothing here knows how a family makes its masks, positions
or biases, and what comes out is what an uninterrupted call gives, bit for bit where the same kernels run.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from transformers import PreTrainedModel

from architectures.files.disk import size
from architectures.progress.track import LINE_INTERVAL_S
from eval.targets.layer_memory import refuse_small_cap
from eval.targets.layered import HEAD, Layers, PausedError, layers_of

Result = TypeVar("Result")


@dataclass(frozen=True)
class Pass(Generic[Result]):
    """One call of a model.

    Attributes:
        run: The call; it may be made several times, and gives the same each time.
        rows: Of texts that it reads.
        width: Tokens of the longest.
        work_bytes: That the call takes while a layer runs, beside what the layer does.
        kept_bytes: That it keeps between two layers, beside its hidden states.
    """

    run: Callable[[], Result]
    rows: int
    width: int
    work_bytes: int = 0
    kept_bytes: int = 0


def run_passes(model: PreTrainedModel, passes: Sequence[Pass[Result]]) -> Iterator[Result]:
    """What each pass gives, in their order.

    Raises:
        UserError: If a target on the disk has too little memory for one of them.
    """
    layers = layers_of(model)
    if layers is None:
        yield from (each.run() for each in passes)
        return
    blocks = cut_into_blocks(model, layers, passes)
    for number, block in enumerate(blocks, start=1):
        yield from run_block(layers, block, words=f"block {number} of {len(blocks)}")


def cut_into_blocks(model: PreTrainedModel, layers: Layers, passes: Sequence[Pass[Result]]) -> list[list[Pass[Result]]]:
    """The passes in blocks, each as large as what its texts keep between two layers leaves memory for."""
    memory, (allowed, _) = layers.memory, layers.cap
    for each in passes:
        beside = each.work_bytes + each.kept_bytes
        refuse_small_cap(
            str(model.name_or_path), memory, layers.cap, rows=each.rows, width=each.width, beside_bytes=beside
        )
    blocks: list[list[Pass[Result]]] = []
    held, largest = 0, 0
    for each in passes:
        own = memory.held_bytes(each.rows, each.width) + each.kept_bytes
        work = memory.pass_bytes(each.rows, each.width) + each.work_bytes
        held, largest = held + own, max(largest, work)
        if not blocks or memory.kept_bytes + memory.largest_bytes + held + largest > allowed:
            blocks.append([])
            held, largest = own, work
        blocks[-1].append(each)
    return blocks


def run_block(layers: Layers, block: Sequence[Pass[Result]], *, words: str) -> Iterator[Result]:
    """Some passes through one layer after another; what they give comes when all layers have run."""
    kept: list[dict[int, Any]] = [{} for _ in block]
    reported_s = time.monotonic()
    for part in layers.parts:
        with layers.loading(part):
            for each, so_far in zip(block, kept, strict=True):
                with layers.interrupted(part.number, so_far), suppress(PausedError):
                    each.run()
        if time.monotonic() - reported_s >= LINE_INTERVAL_S:
            reported_s = time.monotonic()
            done, read = f"layer {part.number + 1} of {len(layers.parts)}", size(layers.memory.weight_bytes).strip()
            print(f"{words}: {done}, {read} of weights are read for it", file=sys.stderr, flush=True)
    with layers.head_stays():
        for each in block:
            with layers.interrupted(HEAD, kept.pop(0)):
                result = each.run()
            yield result
