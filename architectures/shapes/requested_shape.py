"""The shape a recipe asks for: a named one, sizes written out, or sizes relative to the target. Pure; no torch."""

from dataclasses import replace

from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.shapes.section import SIZES, ArchitectureConfig
from architectures.shapes.serving import serving_problems
from architectures.shapes.shape import NAMED_SHAPES, Shape

WIDTHS = ("hidden", "intermediate", "heads", "kv_heads")
BLOCK = 32  # relative hidden and intermediate sizes are multiples of it, as llama.cpp's block formats need


def draft_shape(source: Shape, config: ArchitectureConfig) -> Shape:
    """The shape of the draft. Vocabulary, head width, biases and tied embeddings stay the target's.

    Args:
        source: The target's shape.
        config: A named shape, or sizes; a size left out is the target's, and kv_heads follow heads.

    Raises:
        UserError: If a size exceeds the target's, cannot be cut out of it, or no engine could serve the shape.
    """
    wanted = named_sizes(source, config) if config.shape is not None else written_sizes(source, config)
    key = f"architecture.shape={config.shape}" if config.shape is not None else "architecture"
    refuse_larger(wanted, source, key)
    refuse_width_of_classic_family(wanted, source, key)
    if wanted["hidden"] != source.hidden and config.width_method == "flap":
        raise UserError(
            f"{key} cuts channels (hidden {wanted['hidden']} of {source.hidden}), and architecture.width_method=flap "
            "has no scores of them. Use activation, magnitude or random."
        )
    draft = replace(source, **wanted)
    problems = [] if source.encoder_layers else serving_problems(draft)  # of engines, and none loads those
    if problems:
        raise UserError(f"{key} asks for {describe(wanted)}: {' '.join(problems)}")
    if draft.heads // draft.kv_heads > source.heads // source.kv_heads:
        raise UserError(
            f"{key} has {draft.heads // draft.kv_heads} query heads for each key/value head, the target has "
            f"{source.heads // source.kv_heads}. Heads can only be taken away: keep more kv_heads or fewer heads."
        )
    return draft


def masked_shape(source: Shape, config: ArchitectureConfig) -> Shape:
    """The shape of a draft that masks are trained for: smaller than the target in something.

    Raises:
        UserError: As `draft_shape`, if nothing is cut, and for heads that masks and cuts treat differently.
    """
    draft = draft_shape(source, config)
    if draft == source:
        raise UserError("architecture.method=learned_masks with the target's own sizes leaves nothing to learn. Cut.")
    if FAMILIES[source.family].norms_over_heads and (draft.heads, draft.kv_heads) != (source.heads, source.kv_heads):
        raise UserError(
            f"architecture.method=learned_masks cuts heads of {source.family}, which normalises queries and keys of "
            "all heads together: behind a mask the closed ones still count in that, behind a cut they are gone. Leave "
            "heads and kv_heads out, or choose another method."
        )
    return draft


def named_sizes(source: Shape, config: ArchitectureConfig) -> dict[str, int]:
    assert config.shape is not None  # the caller asked
    shape = NAMED_SHAPES[config.shape].shape
    if shape.head_dim != source.head_dim:
        raise UserError(
            f"architecture.shape={config.shape} has heads {shape.head_dim} wide, the target {source.head_dim}. A head "
            "is kept or removed, never narrowed: write layers, hidden, intermediate and heads out instead."
        )
    return {name: getattr(shape, name) for name in SIZES} | encoder_size(source, config)


def encoder_size(source: Shape, config: ArchitectureConfig) -> dict[str, int]:
    """How many blocks of the encoder the draft keeps; nothing where there is none.

    Raises:
        UserError: If blocks of an encoder are asked for that is not there.
    """
    if source.encoder_layers:
        return {"encoder_layers": written_size("encoder_layers", config.encoder_layers, source.encoder_layers)}
    if config.encoder_layers is not None:
        raise UserError(
            f"architecture.encoder_layers={config.encoder_layers}: {source.family} targets have no encoder. Leave it "
            "out; architecture.layers says how many layers are kept."
        )
    return {}


def written_sizes(source: Shape, config: ArchitectureConfig) -> dict[str, int]:
    """The sizes a recipe writes out; those it leaves out are the target's, and kv_heads follow heads."""
    sizes = {name: written_size(name, getattr(config, name), getattr(source, name)) for name in SIZES}
    if config.stages is not None:
        sizes["layers"] = config.stages[-1]
    can_follow = FAMILIES[source.family].width  # of others no heads can go, which is told behind this
    if can_follow and config.heads is not None and config.kv_heads is None:
        sizes["kv_heads"] = following_kv_heads(sizes["heads"], source)
    return sizes | encoder_size(source, config)


def written_size(name: str, wanted: int | str | None, of_target: int) -> int:
    """One size: as written, a share of the target's ("0.5x"), or the target's own."""
    if wanted is None:
        return of_target
    if isinstance(wanted, int):
        return wanted
    exact = float(wanted.removesuffix("x")) * of_target
    if name == "layers":
        return max(1, round(exact))
    of_blocks = name in ("hidden", "intermediate")  # heads come whole
    rounded = int(exact) // BLOCK * BLOCK if of_blocks else int(exact)
    if rounded < 1 or not (of_blocks or rounded == exact):
        raise UserError(
            f"architecture.{name}={wanted} of the target's {of_target} is {exact:g}, and must be a whole number"
            f"{f' of at least {BLOCK}' if of_blocks else ''}. Write the number out."
        )
    return rounded


def following_kv_heads(heads: int, source: Shape) -> int:
    """As many key/value heads as keep the target's ratio."""
    group = source.heads // source.kv_heads
    if heads % group:
        raise UserError(
            f"architecture.heads={heads} is no multiple of {group}, the query heads that share one key/value head of "
            f"the target. Choose a multiple, or give architecture.kv_heads too."
        )
    return heads // group


def refuse_larger(wanted: dict[str, int], source: Shape, key: str) -> None:
    """A draft is cut out of its target: no size may exceed the target's."""
    larger = [
        f"{name} {size} (target {getattr(source, name)})"
        for name, size in wanted.items()
        if size > getattr(source, name)
    ]
    if larger:
        raise UserError(
            f"{key} exceeds the target in {', '.join(larger)}. A draft is cut from its target: choose smaller sizes."
        )


def refuse_width_of_classic_family(wanted: dict[str, int], source: Shape, key: str) -> None:
    """Of families before LLaMA only layers can be cut."""
    changed = [name for name in WIDTHS if wanted[name] != getattr(source, name)]
    if changed and not FAMILIES[source.family].width:
        raise UserError(
            f"{key} changes {', '.join(changed)}; of {source.family} targets only layers can be cut: "
            f"{FAMILIES[source.family].no_width}. Set architecture.layers alone."
        )


def describe(sizes: dict[str, int]) -> str:
    """Sizes in words: "layers 5, hidden 4096"."""
    return ", ".join(f"{name} {size}" for name, size in sizes.items())
