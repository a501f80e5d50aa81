"""Which of the target's layers a draft is made of. Pure and deterministic; no torch."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from architectures.config import ArchitectureConfig
from architectures.errors import UserError
from architectures.shapes import NAMED_SHAPES, Shape

PLAN_NAME = "plan.json"
WIDTHS = ("hidden", "intermediate", "heads", "kv_heads", "head_dim")


@dataclass(frozen=True, kw_only=True)
class PruningPlan:
    """The source layer of every draft layer, in order, counted from 0."""

    source_layers: tuple[int, ...]
    source: Shape
    draft: Shape
    method: str

    def to_json(self) -> str:
        """As plan.json holds it."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "PruningPlan":
        """The plan that to_json wrote."""
        record = json.loads(text)
        return cls(
            source_layers=tuple(record["source_layers"]),
            source=Shape(**record["source"]),
            draft=Shape(**record["draft"]),
            method=record["method"],
        )


def plan_pruning(source: Shape, config: ArchitectureConfig) -> PruningPlan:
    """The layers to keep, as the recipe's `architecture` section asks.

    Vocabulary, biases and tied embeddings stay the target's, also under a named shape.

    Args:
        source: The target's shape.
        config: A named shape or a number of layers, and a method.

    Raises:
        UserError: If the shape is wider or narrower than the target, or has more layers than it.
    """
    num_layers, key = wanted_layers(source, config)
    if num_layers > source.layers:
        raise UserError(
            f"{key} has {num_layers} layers, the target has {source.layers}. "
            f"A draft is cut from its target: choose 1 to {source.layers} layers."
        )
    return PruningPlan(
        source_layers=METHODS[config.method](source.layers, num_layers),
        source=source,
        draft=replace(source, layers=num_layers),
        method=config.method,
    )


def wanted_layers(source: Shape, config: ArchitectureConfig) -> tuple[int, str]:
    """How many layers the recipe asks for, and the key that says so."""
    if config.layers is not None:
        return config.layers, f"architecture.layers={config.layers}"
    assert config.shape is not None  # ArchitectureConfig has exactly one of the two
    shape, key = NAMED_SHAPES[config.shape].shape, f"architecture.shape={config.shape}"
    differing = [
        f"{width} {getattr(shape, width)} (target {getattr(source, width)})"
        for width in WIDTHS
        if getattr(shape, width) != getattr(source, width)
    ]
    if differing:
        raise UserError(
            f"{key} differs from the target in {', '.join(differing)}. Only depth can be cut at present: "
            "set architecture.layers, or choose a shape as wide as the target (`widedraft shapes`)."
        )
    return shape.layers, key


def first_last(num_source: int, num_kept: int) -> tuple[int, ...]:
    """The first num_kept - 1 layers and the last one: the middle of a deep model is the least missed.

    A single layer is the first: only it was trained to read plain embeddings. (SmolLM2-135M on 1024 tokens of GSM8K
    answers, greedy agreement with the target: 0.079 for layer 0 alone, 0.002 for layer 29 alone.)

    Source: the order in which ShortGPT (Men et al. 2024, arXiv 2403.03853) and Minitron (Sreenivas et al. 2024,
    arXiv 2408.11796) drop layers, taken to its end.
    """
    if num_kept == 1:
        return (0,)
    return (*range(num_kept - 1), num_source - 1)


def evenly_spaced(num_source: int, num_kept: int) -> tuple[int, ...]:
    """The first layer, the last, and the others at equal distances between, each rounded to the nearest, halves up.

    A step is never below 1, so no layer comes twice. A single layer is the first, as in first_last.
    """
    if num_kept == 1:
        return (0,)
    gaps = num_kept - 1
    return tuple((2 * i * (num_source - 1) + gaps) // (2 * gaps) for i in range(num_kept))


METHODS: dict[str, Callable[[int, int], tuple[int, ...]]] = {"first_last": first_last, "evenly_spaced": evenly_spaced}
