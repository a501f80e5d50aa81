"""The tables of `widedraft recipes --shapes`: named shapes with their true size, and what a target can become."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from architectures.errors import UserError
from architectures.shapes.requested_shape import draft_shape
from architectures.shapes.section import ArchitectureConfig
from architectures.shapes.serving import quantised_formats, tensor_parallel_degrees
from architectures.shapes.shape import NAMED_SHAPES, NamedShape, Shape
from architectures.tables import Block, Section, Table

COLUMNS: dict[str, Callable[[Shape], str]] = {
    "layers": lambda shape: str(shape.layers),
    "hidden": lambda shape: str(shape.hidden),
    "intermediate": lambda shape: str(shape.intermediate),
    "heads": lambda shape: str(shape.heads),
    "kv": lambda shape: str(shape.kv_heads),
    "head_dim": lambda shape: str(shape.head_dim),
    "true parameters": lambda shape: millions(shape.parameters()),
    "without embeddings": lambda shape: millions(shape.parameters_without_embeddings()),
    "per layer": lambda shape: millions(shape.parameters_per_layer()),
    "bf16 GiB": lambda shape: f"{shape.weight_bytes('bfloat16') / 2**30:.2f}",
    "KV KiB/token": lambda shape: f"{shape.kv_bytes_per_token('bfloat16') / 2**10:g}",
    "tensor parallel": lambda shape: ",".join(map(str, tensor_parallel_degrees(shape))),
    "llama.cpp": quantised_formats,
}
NOTES = """\
nominal is the published name; the true count is what the checkpoint holds (a tied head once), norms included.
without embeddings leaves out the embedding and the output head. KV is in bfloat16, for one sequence.
tensor parallel: over how many devices vLLM and SGLang can divide the shape; llama.cpp: the block formats its rows fit.
""".rstrip()
NAMES_NOTE = "wide-829m is five layers of Llama-3.2-1B: its name counts the tied output head a second time (829.4M)."


def shapes_page() -> list[Block]:
    """Every named shape, its published name beside its true size."""
    rows = [row(name, named.nominal, named.shape) for name, named in NAMED_SHAPES.items()]
    return [shapes_table(rows), f"{NOTES}\n{NAMES_NOTE}"]


def target_page(target: Shape, name: str) -> list[Block]:
    """A target, what each named shape would be if cut out of it, and why the others cannot.

    Args:
        target: Its shape.
        name: What the user calls it.
    """
    rows, refused = [row("target", "", target)], defaultdict[str, list[str]](list)
    for key, named in NAMED_SHAPES.items():
        try:
            rows.append(cut_row(key, named, target))
        except UserError as error:
            refused[str(error).removeprefix(f"architecture.shape={key} ")].append(key)
    reasons = [f"{', '.join(keys)}: it {reason}" for reason, keys in refused.items()]
    cannot = [Section("Not to be cut out of this target:", reasons)] if refused else []
    return [name, shapes_table(rows), *cannot, NOTES]


def cut_row(key: str, named: NamedShape, target: Shape) -> tuple[str, ...]:
    """A named shape with the target's vocabulary, ties and biases."""
    return row(key, named.nominal, draft_shape(target, ArchitectureConfig(shape=key)))


def shapes_table(rows: Sequence[Sequence[str]]) -> Table:
    return Table(("name", "nominal", *COLUMNS), rows)


def row(name: str, nominal: str, shape: Shape) -> tuple[str, ...]:
    return (name, nominal, *(text(shape) for text in COLUMNS.values()))


def millions(count: int) -> str:
    """1274089472 -> "1274.1M"."""
    return f"{count / 1e6:.1f}M"
