"""Shapes that may be chosen: the recipe's own architecture with other depths and output heads. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from architectures.draft_vocabulary.asked import with_asked_head
from architectures.errors import UserError
from architectures.shapes.requested_shape import draft_shape
from architectures.shapes.section import ArchitectureConfig
from architectures.shapes.shape import Shape
from architectures.small_head.config import VocabularyConfig
from distill.choose.shapes.vocabularies import vocabularies_of
from distill.recipe.recipe import Recipe
from distill.run.run import Run

DEPTHS = (1, 2, 3, 4, 6, 8, 12)
REPLACED = ("shape", "layers", "hidden", "intermediate", "heads", "kv_heads", "stages", "plan")


@dataclass(frozen=True)
class Candidate:
    """A shape that may be chosen.

    Attributes:
        name: Of its folder and in tables: "4-layers", or "4-layers-4096-ids".
        shape: What would be cut.
        recipe: The recipe that makes it.
    """

    name: str
    shape: Shape
    recipe: Recipe


def candidates_of(
    recipe: Recipe,
    target: Shape,
    layers: Sequence[int],
    most_parameters: int | None,
    vocabulary: Sequence[int] = (),
) -> list[Candidate]:
    """The recipe with each number of layers and each output head, from shallow to deep; widths as the recipe has them.

    Args:
        recipe: Says target, data, training, and widths other than the target's.
        target: Its shape, or that of what the draft is cut out of.
        layers: Of the candidates; of none, those of DEPTHS that are fewer than the target's.
        most_parameters: No candidate has more; None for no bound.
        vocabulary: How many ids candidates can output, 0 for all; of none, as many as the recipe's own.

    Raises:
        UserError: If a shape cannot be cut, none is left, or heads would be trained whole that are to be frozen.
    """
    if recipe.architecture.method == "learned_masks":
        raise UserError(
            "architecture.method=learned_masks trains masks for every shape, which is no short training. Choose with "
            "architecture.method=greedy, then set the shape here."
        )
    depths = sorted(set(layers)) or [depth for depth in DEPTHS if depth < target.layers]
    heads = vocabularies_of(recipe, target, vocabulary)
    everything = [candidate(recipe, target, depth, head) for depth, head in product(depths, heads)]
    kept = [each for each in everything if most_parameters is None or each.shape.parameters() <= most_parameters]
    if not kept:
        least = min(everything, key=lambda each: each.shape.parameters())
        raise UserError(
            f"--most-parameters {most_parameters}: the smallest candidate, {least.name}, has "
            f"{least.shape.parameters()}. Allow more, or set smaller widths in the recipe."
        )
    refuse_frozen_heads(recipe, target, kept)
    return kept


def refuse_frozen_heads(recipe: Recipe, target: Shape, candidates: Sequence[Candidate]) -> None:
    """Raise UserError where a depth is trained with its whole head, which is its embedding, and that is frozen.

    Of several sizes of the head, each depth is trained with all of it (distill/choose/trainings/trials.py).
    """
    sizes = {each.shape.head_rows for each in candidates}
    if recipe.distill.freeze_input_embeddings and target.tied and (len(sizes) > 1 or target.vocab in sizes):
        raise UserError(
            "--vocabularies: each depth is trained with its whole head here, which is its input embedding and frozen "
            "by distill.freeze_input_embeddings. Add distill.freeze_input_embeddings=false, or ask for one size."
        )


def candidate(recipe: Recipe, target: Shape, layers: int, vocabulary: VocabularyConfig | None) -> Candidate:
    sizes = written_widths(recipe.architecture, target)
    wanted = recipe.architecture.model_copy(update={**dict.fromkeys(REPLACED), **sizes, "layers": layers})
    shape, name = with_asked_head(draft_shape(target, wanted), vocabulary), depth_name(layers)
    if vocabulary is not None:
        name = f"{name}-{shape.head_vocab}-ids"
    trial = recipe.model_copy(
        update={
            "run_name": f"{recipe.run_name}-{name}",
            "run_dir": str(trials_folder(Run.of(recipe)) / name),
            "architecture": wanted.model_copy(update={"vocabulary": vocabulary}),
        }
    )
    return Candidate(name, shape, trial)


def trials_folder(run: Run) -> Path:
    """The folder of everything that a choice makes in a run."""
    return run.folder / "choose"


def depth_name(layers: int) -> str:
    """What a candidate with the whole head is called."""
    return f"{layers}-layers"


def written_widths(architecture: ArchitectureConfig, target: Shape) -> dict[str, int]:
    """The recipe's widths where they are not the target's, in numbers."""
    if architecture.plan is not None:
        raise UserError("architecture.plan says one shape, so there is nothing to choose from. Write sizes instead.")
    shape = draft_shape(target, architecture)
    widths = ("hidden", "intermediate", "heads", "kv_heads")
    return {name: getattr(shape, name) for name in widths if getattr(shape, name) != getattr(target, name)}
