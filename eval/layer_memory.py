"""Memory of a target that is read layer by layer, computed from its shape before loading. No torch."""

from dataclasses import dataclass
from math import prod
from pathlib import Path

from architectures.errors import UserError
from architectures.files import format_bytes
from architectures.settings import Holding
from architectures.shapes import DTYPE_BYTES, OtherShape, Shape

KEY = "target.device_memory_gib"
WIDEST = 3  # times the width of a feed-forward: gate, up and their product
STREAMS = 6  # copies of the residual stream while a layer runs: its input, output, norms and sums
SCORE_COPIES = 2  # of attention scores, if the kernel keeps them: before and after the softmax


@dataclass(frozen=True)
class LayerMemory:
    """Bytes of a target on disk.

    Attributes:
        largest: Name of the largest part that is read at once.
        kept_bytes: Of norms and positions, which stay in memory.
        weight_bytes: Of all weights, which every block of sequences reads once.
        state_bytes: Of one token's hidden state between two layers.
        token_bytes: Of one token while a layer runs, without its attention scores.
        score_bytes: Of one token attending to one other.
        bias_bytes: Of attention biases that one layer hands to the next, per pair of tokens.
    """

    largest: str
    largest_bytes: int
    kept_bytes: int
    weight_bytes: int
    state_bytes: int
    token_bytes: int
    score_bytes: int
    bias_bytes: int

    def pass_bytes(self, rows: int, width: int) -> int:
        return rows * width * (self.token_bytes + width * self.score_bytes)

    def held_bytes(self, rows: int, width: int) -> int:
        return rows * width * (self.state_bytes + width * self.bias_bytes)

    def least_bytes(self, rows: int = 1, width: int = 1) -> int:
        """Return the minimum memory for a pass over a batch that is the only one in its block."""
        at_work = self.pass_bytes(rows, width) + self.held_bytes(rows, width)
        return self.kept_bytes + self.largest_bytes + at_work


def layer_memory(shape: Shape, dtype: str, *, keeps_scores: bool = True) -> LayerMemory:
    """Compute the memory of a target of a shape.

    Args:
        keeps_scores: True if attention may materialise its scores, as on a CPU.
    """
    item, layer = DTYPE_BYTES[dtype], shape.parameters_per_layer()
    encoder_block = sum(map(prod, shape.encoder_layer_tensors().values()))
    parts = {"encoder block": encoder_block, "layer": layer, "output head": shape.head_rows * shape.hidden}
    largest = max(parts, key=lambda name: parts[name])
    in_parts = shape.layers * layer + shape.encoder_parameters() + shape.vocab * shape.hidden
    head = 0 if shape.tied else parts["output head"]
    kept = shape.parameters() - in_parts - head
    neurons = shape.intermediate * max(1, shape.active_experts)
    widths = STREAMS * shape.hidden + WIDEST * neurons + 2 * (shape.axis("query") + shape.axis("key_value"))
    scores = SCORE_COPIES * shape.heads * item if keeps_scores else 0
    stacks = 2 if shape.encoder_layers else 1
    return LayerMemory(
        largest=f"its {largest}",
        largest_bytes=parts[largest] * item,
        kept_bytes=kept * item,
        weight_bytes=shape.weight_bytes(dtype),
        state_bytes=stacks * shape.hidden * item,
        token_bytes=widths * item,
        score_bytes=scores,
        bias_bytes=stacks * shape.heads * item if shape.buckets else 0,
    )


def requested_bytes(holding: Holding) -> tuple[int, str] | None:
    """Return the configured device memory, and where it comes from; None if not set."""
    gib = holding.device_memory_gib
    return None if gib is None else (int(gib * 2**30), f"{KEY} is {gib:g}")


def reject_asked_cap(target: Path | str, shape: Shape, dtype: str, holding: Holding) -> None:
    """Raise UserError if the configured memory does not fit the largest part of a target, if its size is known."""
    requested = requested_bytes(holding)
    if holding.placement != "whole" and requested is not None and not isinstance(shape, OtherShape):
        reject_small_cap(target, layer_memory(shape, dtype), requested)


def reject_small_cap(
    folder: Path | str,
    memory: LayerMemory,
    cap: tuple[int, str],
    *,
    rows: int = 1,
    width: int = 1,
    beside_bytes: int = 0,
) -> None:
    """Raise UserError if a target does not fit even layer by layer.

    Args:
        cap: From cap_bytes.
        rows: Of the largest pass.
        beside_bytes: Memory of the pass in addition to that of the layers.
    """
    allowed, origin = cap
    needed = memory.least_bytes(rows, width) + beside_bytes
    if needed <= allowed:
        return
    fewer = " or lower data.batch_size" if rows > 1 else ""
    raise UserError(
        f"{folder}: layer by layer it needs at least {format_bytes(needed)}, of which {memory.largest} "
        f"{format_bytes(memory.largest_bytes)}; but {origin}, {format_bytes(allowed)}. "
        f"Raise {KEY}{fewer}, or use a machine with more memory."
    )
