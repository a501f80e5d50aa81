"""What shapes of equal size say of depth and width, in words and a table. Pure, from the record."""

import math
from collections.abc import Sequence

from architectures.pages.blocks import Table
from eval.pages.tables import with_head_size
from eval.pages.verdict import with_interval
from eval.records.grid import DepthAndWidth, ShapeRow, SizeEnds

COLUMNS = ("shape", "layers", "hidden", "intermediate", "heads", "kv_heads")


def shapes_table(shapes: Sequence[ShapeRow]) -> Table:
    """The shapes, and which of them could not be cut out of the target."""
    head_sizes = [shape.head_vocab or None for shape in shapes]
    return with_head_size(Table((*COLUMNS, "larger than the target in"), list(map(shape_cells, shapes))), head_sizes)


def shape_cells(shape: ShapeRow) -> tuple[str, ...]:
    return (shape.name, *(str(getattr(shape, name)) for name in COLUMNS[1:]), ", ".join(shape.larger))


def depth_sentences(record: DepthAndWidth) -> list[str]:
    """Whether depth costs at equal size, in one cell."""
    fit = record.fit
    straight = (
        f"Fitted: {with_interval(fit.constant_ms)} ms, {with_interval(fit.layer_ms)} ms more for each layer, "
        f"{with_interval(fit.hundred_channels_ms)} ms for each hundred channels; the line misses by up to "
        f"{fit.largest_residual:.0%}."
    )
    return [*map(size_sentence, record.sizes), straight, verdict(record.sizes)]


def size_sentence(size: SizeEnds) -> str:
    """The two ends of one size."""
    fastest = "" if size.fastest == size.shallowest else f" The fastest is {size.fastest}."
    return (
        f"About {size.size / 1e6:.1f}M parameters: a step of {size.deepest} takes "
        f"{with_interval(size.deepest_over_shallowest, times=True)} as long as one of {size.shallowest}.{fastest}"
    )


def verdict(sizes: Sequence[SizeEnds]) -> str:
    """Whether the claim holds here: at equal size the deepest shape is slower than the shallowest."""
    intervals = [size.deepest_over_shallowest.interval or (0.0, math.inf) for size in sizes]
    if all(low > 1 for low, _ in intervals):
        return "So depth costs here: of equal size, a shallow and wide draft is faster than a deep and narrow one."
    if all(high < 1 for _, high in intervals):
        return (
            "So depth does not cost here: of equal size, a deep and narrow draft is faster than a shallow and wide one."
        )
    return "Whether depth costs here is not decided: an interval holds 1, or sizes disagree."
