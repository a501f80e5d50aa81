"""Shapes of one size, from shallow and wide to deep and narrow: what depth costs is measured on them. Pure; no torch.

Heads keep the target's width and its query heads per key/value head, and together are as wide as the residual stream.
The feed-forward width makes up the size; of all widths of the stream the one is taken that leaves its ratio to the
feed-forward width nearest to the target's.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import log

from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.requested_shape import BLOCK
from architectures.shapes import Shape


@dataclass(frozen=True)
class EqualShape:
    """One of several shapes of a size.

    Attributes:
        size: Parameters that were asked for.
        shape: What comes nearest.
    """

    size: int
    shape: Shape

    @property
    def name(self) -> str:
        """As tables call it: "4 x 576 (33.6M)"."""
        return f"{self.shape.layers} x {self.shape.hidden} ({self.shape.parameters() / 1e6:.1f}M)"


def equal_shape(source: Shape, *, layers: int, parameters: int) -> Shape:
    """The shape of so many layers and about so many parameters, its proportions nearest to the target's.

    Args:
        source: The target's shape.
        layers: At most the target's.
        parameters: Of everything a checkpoint holds; met within a step of 32 neurons.

    Raises:
        UserError: If the family's width is fixed, or no width makes the size.
    """
    reject_fixed_width(source)
    if not 1 <= layers <= source.layers:
        raise UserError(f"{layers} layers: a draft has 1 to {source.layers}, as many as its target at most.")
    shapes = list(filled_shapes(replace(source, layers=layers), parameters))
    if not shapes:
        raise UserError(
            f"{layers} layers of {parameters / 1e6:.1f}M parameters: even the narrowest draft, hidden "
            f"{narrowest(source)}, takes more. Ask for fewer layers or more parameters."
        )
    return min(
        shapes, key=lambda shape: abs(log(shape.intermediate / shape.hidden * source.hidden / source.intermediate))
    )


def filled_shapes(source: Shape, parameters: int) -> Iterator[Shape]:
    """For each width of the stream that leaves space for neurons, the shape that fills the size with them."""
    step = narrowest(source)
    for hidden in range(step, parameters // source.vocab + 1, step):
        heads = hidden // source.head_dim
        kv_heads = heads * source.kv_heads // source.heads
        least = replace(source, hidden=hidden, heads=heads, kv_heads=kv_heads, intermediate=BLOCK)
        per_block = replace(least, intermediate=2 * BLOCK).parameters() - least.parameters()
        more = round((parameters - least.parameters()) / per_block)
        if more >= 0:
            yield replace(least, intermediate=(1 + more) * BLOCK)


def narrowest(source: Shape) -> int:
    """The width of one whole group of query heads."""
    return source.heads // source.kv_heads * source.head_dim


def reject_fixed_width(source: Shape) -> None:
    """Raise UserError for a family of which no other width is known to exist."""
    if not FAMILIES[source.family].width:
        raise UserError(
            f"Of {source.family} targets only layers can be cut: no wider or narrower draft can be measured."
        )
