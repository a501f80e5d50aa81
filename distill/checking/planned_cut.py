"""What a recipe cuts out of what: shapes of target, source and draft, from config files alone. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from architectures.draft_vocabulary.asked import with_asked_head
from architectures.errors import UserError
from architectures.pruning.plan import load_plan, needed_scores, plan_pruning
from architectures.shapes.context_length import ContextLength, context_length
from architectures.shapes.requested_shape import WIDTHS, draft_shape, masked_shape
from architectures.shapes.section import ArchitectureConfig
from architectures.shapes.shape import Shape
from architectures.small_head.record import CONFIG_KEY, refuse_small_head
from architectures.targets.target import config_at_hand, is_gguf, packaged_words
from distill.recipe.recipe import Recipe


@dataclass(frozen=True)
class Cut:
    """The shapes of a run, and how the draft comes out of its source, in words.

    Attributes:
        target: That answers and teaches.
        draft: That is trained.
        origin: How it is cut.
        source: What it is cut out of; the target, unless architecture.source names another.
        lengths: How long texts target and source were made for, in this order.
        unread: The checkpoints whose shape comes from our own table and not from their config.json.
    """

    target: Shape
    draft: Shape
    origin: str
    source: Shape
    lengths: tuple[ContextLength | None, ContextLength | None]
    unread: tuple[str, ...] = ()


def planned(recipe: Recipe) -> Cut:
    """The shapes of target and draft, from the target's config alone."""
    target, length, read = shape_at_hand("target.path", recipe.target.path, recipe.target.revision)
    if target.head_vocab:
        refuse_small_head({CONFIG_KEY: target.head_vocab}, recipe.target.path)
    source, source_length, unread = target, length, () if read else (recipe.target.path,)
    if (path := recipe.architecture.source) is not None:
        revision = recipe.architecture.source_revision
        source, source_length, read = shape_at_hand("architecture.source", path, revision)
        unread += () if read else (path,)
    draft, origin = draft_and_origin(recipe.architecture, source, recipe.seed)
    draft = with_asked_head(replace(draft, vocab=target.vocab), recipe.architecture.vocabulary)
    return Cut(target, draft, origin, source, (length, source_length), unread)


def shape_at_hand(key: str, path: str, revision: str) -> tuple[Shape, ContextLength | None, bool]:
    """Shape and context length of a checkpoint the recipe names, and whether its own config.json says so."""
    try:
        config, own = config_at_hand(path, revision)
    except UserError as error:
        hint = (
            ""
            if is_gguf(path) or packaged_words(path)
            else f" A GGUF file becomes this folder by `widedraft import-gguf FILE --to {path}`."
        )
        raise UserError(f"{key}: {error}{hint}") from error
    return Shape.from_config(config, where=path), context_length(config, where=path), own


def draft_and_origin(wanted: ArchitectureConfig, source: Shape, seed: int) -> tuple[Shape, str]:
    """The draft's shape, and how it is cut out of its source, in words."""
    if wanted.plan is not None:
        plan = load_plan(Path(wanted.plan), source, target=None)
        return plan.draft, f"cut by {wanted.plan}, {keeping(plan.source_layers, source)}"
    if wanted.method == "learned_masks":
        return masked_shape(source, wanted), f"cut by masks trained for {wanted.masks.max_duration}"
    draft = draft_shape(source, wanted)
    narrower = any(getattr(draft, name) != getattr(source, name) for name in WIDTHS)
    methods = f"{wanted.method}, widths by {wanted.width_method}" if narrower else wanted.method
    if wanted.stages is not None:
        if wanted.stages[0] > source.layers:
            raise UserError(
                f"architecture.stages must begin with at most the {source.layers} layers there are, got "
                f"{wanted.stages}. A draft is cut from its target: choose fewer."
            )
        return draft, f"cut to {', '.join(map(str, wanted.stages))} layers in turn, each by {methods}"
    if needed_scores(source, wanted):
        text = f"{wanted.calibration.tokens} tokens of {wanted.calibration.text or 'the prompts'}"
        return draft, f"cut by {methods}, from scores on {text}"
    plan = plan_pruning(source, wanted, seed=seed)
    return draft, f"cut by {methods}, {keeping(plan.source_layers, source)}"


def keeping(layers: Sequence[int], source: Shape) -> str:
    kept = f"layer{'' if len(layers) == 1 else 's'} {', '.join(map(str, layers))}"
    return f"keeping {kept} of 0 to {source.layers - 1}"
