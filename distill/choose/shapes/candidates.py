"""Shapes that may be chosen: the recipe's own architecture with other depths, widths and output heads. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, product
from pathlib import Path

from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.shapes.requested_shape import draft_shape
from architectures.shapes.section import ArchitectureConfig
from architectures.shapes.shape import Shape
from architectures.vocabulary import VocabularyConfig, with_asked_head
from distill.choose.shapes.left_out import LeftOut
from distill.choose.shapes.vocabularies import vocabularies_of
from distill.choose.shapes.widths import Widths, own_widths, proportioned_widths, width_words, widths_of
from distill.recipe.recipe import Recipe
from distill.run.run import Run

DEPTHS = (1, 2, 3, 4, 6, 8, 12)
REPLACED = ("shape", "layers", "hidden", "intermediate", "heads", "kv_heads", "stages", "plan")


@dataclass(frozen=True)
class Candidate:
    """A shape that may be chosen.

    Attributes:
        name: Of its folder and in tables: "4-layers", "4-layers-288-hidden", or "4-layers-4096-ids".
        body: The name of what has the same layers and widths, and the whole head.
        shape: What would be cut.
        recipe: The recipe that makes it.
    """

    name: str
    body: str
    shape: Shape
    recipe: Recipe

    @property
    def body_shape(self) -> Shape:
        """All but the output head."""
        return replace(self.shape, head_vocab=0)


@dataclass(frozen=True)
class Wanted:
    """Which shapes are asked for; nothing of a kind stands for the usual depths, or the recipe's own.

    Attributes:
        layers: Numbers of layers; of none, those of DEPTHS that are fewer than the target's.
        vocabularies: How many ids candidates can output, 0 for all.
        widths: Numbers, shares or "all", by the recipe key of a width.
        most_parameters: No candidate has more; None for no bound.
        is_widest: Whether the widest alone stays that a bound allows, of every depth and head; of no widths asked for,
            all of them then shrink together.
        is_bound_by_time: Whether there is a bound that only step times tell of, so that the widest is found by them.
    """

    layers: Sequence[int] = ()
    vocabularies: Sequence[int] = ()
    widths: Mapping[str, Sequence[int | str]] = field(default_factory=dict)
    most_parameters: int | None = None
    is_widest: bool = False
    is_bound_by_time: bool = False


@dataclass(frozen=True)
class Asked:
    """Shapes that were asked for: the candidates, and those that are out before anything is timed."""

    candidates: list[Candidate]
    left_out: list[LeftOut]


def asked_shapes(recipe: Recipe, target: Shape, wanted: Wanted) -> Asked:
    """The recipe with each number of layers, width and output head; from shallow to deep, from narrow to wide.

    Args:
        recipe: Says target, data, training, and what is not asked for.
        target: Its shape, or that of what the draft is cut out of.
        wanted: What is asked for.

    Raises:
        UserError: If no shape can be cut or none is left, or heads would be trained whole that are to be frozen.
    """
    FAMILIES[target.family].refuse("choose", "shapes to choose among")
    refuse_masks(recipe)
    depths = sorted(set(wanted.layers)) or [depth for depth in DEPTHS if depth < target.layers]
    heads = vocabularies_of(recipe, target, wanted.vocabularies)
    found, left_out = cuttable(recipe, target, depths, all_widths(recipe, target, wanted), heads)
    kept, too_large = found, []
    if wanted.most_parameters is not None:
        kept, too_large = bounded(found, wanted.most_parameters)
    kept, narrow = widest(kept) if wanted.is_widest and not wanted.is_bound_by_time else (kept, [])
    refuse_frozen_heads(recipe, target, kept)
    return Asked(kept, [*left_out, *too_large, *narrow])


def refuse_masks(recipe: Recipe) -> None:
    """Raise UserError where every shape would need masks of its own."""
    if recipe.architecture.method == "learned_masks":
        raise UserError(
            "architecture.method=learned_masks trains masks for every shape, which is no short training. Choose with "
            "architecture.method=greedy, then set the shape here."
        )


def all_widths(recipe: Recipe, target: Shape, wanted: Wanted) -> list[Widths]:
    """Every width that candidates have."""
    if wanted.is_widest and not any(wanted.widths.values()):
        own_widths(recipe.architecture, target)  # a plan is refused
        return proportioned_widths(target)
    return widths_of(recipe.architecture, target, wanted.widths)


def cuttable(
    recipe: Recipe,
    target: Shape,
    depths: Sequence[int],
    widths: Sequence[Widths],
    heads: Sequence[VocabularyConfig | None],
) -> tuple[list[Candidate], list[LeftOut]]:
    """Candidates, and those among several widths that cannot be cut.

    Raises:
        UserError: If that is all of them, or a depth exceeds the target's.
    """
    found, problems = [], []
    for depth, each, head in product(depths, widths, heads):
        try:
            found.append(candidate(recipe, target, depth, each, head))
        except UserError as error:
            if len(widths) == 1 or depth > target.layers:
                raise
            name = "-".join([depth_name(depth), *width_words(each, own_widths(recipe.architecture, target), target)])
            problems.append(LeftOut(name, "cannot be cut", str(error)))
    if not found:
        raise UserError(f"{problems[0].candidate}, as all of them: {problems[0].reason}")
    return found, list(dict.fromkeys(problems))


def bounded(candidates: Sequence[Candidate], most_parameters: int) -> tuple[list[Candidate], list[LeftOut]]:
    """Those that have no more parameters, and the others.

    Raises:
        UserError: If that is all of them.
    """
    kept = [each for each in candidates if each.shape.parameters() <= most_parameters]
    if not kept:
        least = min(candidates, key=lambda each: each.shape.parameters())
        raise UserError(
            f"--most-parameters {most_parameters}: the smallest candidate, {least.name}, has "
            f"{least.shape.parameters()}. Allow more, or ask for smaller widths."
        )
    too_large = [
        LeftOut(each.name, "too many parameters", f"has {each.shape.parameters():,}, of {most_parameters:,}")
        for each in candidates
        if each not in kept
    ]
    return kept, too_large


def widest(candidates: Sequence[Candidate]) -> tuple[list[Candidate], list[LeftOut]]:
    """The one with the most parameters of every depth and head, and the others."""

    def depth_and_head(candidate: Candidate) -> tuple[int, int]:
        return candidate.shape.layers, candidate.shape.head_rows

    kept, left_out = [], []
    for _, group in groupby(sorted(candidates, key=depth_and_head), key=depth_and_head):
        *others, best = sorted(group, key=lambda each: each.shape.parameters())
        kept.append(best)
        left_out += [LeftOut(each.name, "a wider one fits", f"{best.name} is wider and fits too") for each in others]
    return kept, left_out


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


def candidate(
    recipe: Recipe, target: Shape, layers: int, widths: Widths, vocabulary: VocabularyConfig | None
) -> Candidate:
    """The recipe with one shape.

    Raises:
        UserError: If it cannot be cut.
    """
    own = own_widths(recipe.architecture, target)
    wanted = recipe.architecture.model_copy(update={**dict.fromkeys(REPLACED), **widths, "layers": layers})
    shape = with_asked_head(draft_shape(target, wanted), vocabulary)
    body = "-".join([depth_name(layers), *width_words(widths, own, target)])
    name = body if vocabulary is None else f"{body}-{shape.head_vocab}-ids"
    return Candidate(name, body, shape, trial_recipe(recipe, name, wanted, vocabulary))


def trial_recipe(recipe: Recipe, name: str, wanted: ArchitectureConfig, vocabulary: VocabularyConfig | None) -> Recipe:
    """The recipe that trains a candidate, in a run of its own."""
    return recipe.model_copy(
        update={
            "run_name": f"{recipe.run_name}-{name}",
            "run_dir": str(trials_folder(Run.of(recipe)) / name),
            "architecture": wanted.model_copy(update={"vocabulary": vocabulary}),
        }
    )


def trials_folder(run: Run) -> Path:
    """The folder of everything that a choice makes in a run."""
    return run.folder / "choose"


def depth_name(layers: int) -> str:
    """What a candidate with the recipe's own widths and the whole head is called."""
    return f"{layers}-layers"
