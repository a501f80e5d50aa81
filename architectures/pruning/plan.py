"""What of the target a draft is made of: layers, heads, neurons, channels. Pure and deterministic; no torch."""

from collections.abc import Sequence
from pathlib import Path

from architectures.checkpoints.fingerprint import fingerprint_checkpoint
from architectures.errors import UserError
from architectures.files.reading import read_text
from architectures.pruning.depth import (
    evenly_spaced,
    first_last,
    followers,
    most_influential,
    random_layers,
    without_removed,
)
from architectures.pruning.encoder_depth import ENCODER_SCORES, kept_encoder_layers
from architectures.pruning.plan_laws import broken_laws
from architectures.pruning.plan_record import REMEDY, Cut, PruningPlan
from architectures.pruning.scores import Scores
from architectures.pruning.width import Kept, best, best_heads, channel_scores, width_scores
from architectures.shapes.requested_shape import draft_shape
from architectures.shapes.section import ArchitectureConfig
from architectures.shapes.shape import Shape

PLAN_MIB = 256  # a plan that names each neuron of 80 layers has some 10 MB
LAYER_SCORES = {"block_influence": "block_influence_L", "greedy": "removal_order", "merge": "merge_order"}
WIDTH_SCORES = {"intermediate": "neurons_LF", "heads": "heads_LN", "hidden": "channels_H"}


def plan_pruning(
    source: Shape, config: ArchitectureConfig, scores: Scores | None = None, *, seed: int = 0, target: str | None = None
) -> PruningPlan:
    """What to keep, as the recipe's `architecture` section asks.

    Args:
        source: The target's shape.
        config: Shape or sizes, and how parts are chosen.
        scores: Of the target; what `needed_scores` says, at least.
        seed: Of random choices.
        target: The target's fingerprint, recorded.

    Raises:
        UserError: If the shape cannot be cut out of the target.
    """
    draft = draft_shape(source, config)
    known = scores or Scores()
    starts = kept_layers(source, draft, config.method, known, seed=seed)
    merged = followers(starts, source.layers) if config.method == "merge" else ()
    groups = [(start, *others) for start, others in zip(starts, merged or [()] * len(starts), strict=True)]
    heads, kv_heads = kept_heads(source, draft, config, known, groups, seed=seed)
    cuts, gains = rescaling(source, starts, known) if config.rescale else ((), ())
    return PruningPlan(
        source_layers=starts,
        source=source,
        draft=draft,
        method=config.method,
        merged_layers=merged if any(merged) else (),
        neurons=kept_neurons(source, draft, config, known, groups, seed=seed),
        heads=heads,
        kv_heads=kv_heads,
        channels=kept_channels(source, draft, config, known, seed=seed),
        cuts=cuts,
        read_gains=gains,
        target=target,
        encoder_layers=kept_encoder_layers(source, draft, config.encoder_method, known, seed=seed),
    )


def load_plan(file: Path, source: Shape, *, target: Path | None) -> PruningPlan:
    """A plan from a file, made for this very target.

    Args:
        file: A plan.json.
        source: The target's shape.
        target: The target's folder, whose fingerprint is compared; None compares shapes alone.

    Raises:
        UserError: If it cannot be read, or was made for another target.
    """
    plan = PruningPlan.from_json(read_text(file, remedy=REMEDY, most_mib=PLAN_MIB), where=str(file))
    if plan.source != source or (target is not None and plan.target != fingerprint_checkpoint(target)):
        fingerprint = None if target is None else fingerprint_checkpoint(target)
        raise UserError(
            f"{file}: made for another target (fingerprint {short(plan.target)}, {plan.source.layers} layers) than "
            f"this one ({short(fingerprint)}, {source.layers} layers). Make a plan for this target, or name the "
            "other one."
        )
    for mistake in broken_laws(plan):
        raise UserError(f"{file}: {mistake}. {REMEDY}")
    return plan


def short(fingerprint: str | None) -> str:
    """The start of a fingerprint, enough to tell two apart."""
    return "none" if fingerprint is None else fingerprint[:12]


def needed_scores(source: Shape, config: ArchitectureConfig) -> set[str]:
    """The arrays of Scores a plan looks at; what the shape does not cut needs none, and learned masks need none."""
    if config.method == "learned_masks":
        return set()
    draft = draft_shape(source, config)
    needed: set[str] = set()
    if draft.layers < source.layers and config.method in LAYER_SCORES:
        needed.add(LAYER_SCORES[config.method])
    if draft.encoder_layers < source.encoder_layers and config.encoder_method in ENCODER_SCORES:
        needed.add(ENCODER_SCORES[config.encoder_method])
    if config.rescale:
        needed |= {"mean_abs_JH", "spread_JH"}
    if config.width_method != "random":
        cut = [part for size, part in WIDTH_SCORES.items() if getattr(draft, size) < getattr(source, size)]
        needed |= {f"{config.width_method}.{part}" for part in cut}
    return needed


def kept_layers(source: Shape, draft: Shape, method: str, scores: Scores, *, seed: int) -> Kept:
    """The source layer of every draft layer; of merged ones the first."""
    num_source, num_kept = source.layers, draft.layers
    if num_kept == num_source:
        return tuple(range(num_source))
    if method == "block_influence":
        return most_influential(scores, num_kept)
    if method in LAYER_SCORES:
        return without_removed(scores.order(LAYER_SCORES[method]), num_source, num_kept)
    if method == "random":
        return random_layers(num_source, num_kept, seed=seed)
    return {"first_last": first_last, "evenly_spaced": evenly_spaced}[method](num_source, num_kept)


def kept_neurons(
    source: Shape, draft: Shape, config: ArchitectureConfig, scores: Scores, groups: Sequence[Kept], *, seed: int
) -> tuple[Kept, ...] | None:
    """The neurons of every draft layer; None where all are kept."""
    if draft.intermediate == source.intermediate:
        return None
    sizes = (source.layers, source.intermediate)
    neuron_scores = width_scores(scores, config.width_method, "neurons_LF", groups, sizes, seed=seed)
    return tuple(best(row, draft.intermediate) for row in neuron_scores)


def kept_heads(
    source: Shape, draft: Shape, config: ArchitectureConfig, scores: Scores, groups: Sequence[Kept], *, seed: int
) -> tuple[tuple[Kept, ...] | None, tuple[Kept, ...] | None]:
    """The query and key/value heads of every draft layer; None where all are kept."""
    if draft.heads == source.heads:
        return None, None
    head_scores = width_scores(
        scores, config.width_method, "heads_LN", groups, (source.layers, source.heads), seed=seed
    )
    chosen = [best_heads(row, source, draft) for row in head_scores]
    queries, keys = tuple(heads for heads, _ in chosen), tuple(groups for _, groups in chosen)
    return queries, None if draft.kv_heads == source.kv_heads else keys


def kept_channels(source: Shape, draft: Shape, config: ArchitectureConfig, scores: Scores, *, seed: int) -> Kept | None:
    """The channels of the residual stream; None where all are kept."""
    if draft.hidden == source.hidden:
        return None
    return best(channel_scores(scores, config.width_method, source.hidden, seed=seed), draft.hidden)


def rescaling(source: Shape, layers: Kept, scores: Scores) -> tuple[tuple[Cut, ...], tuple[float, ...]]:
    """Scales that bring the stream before each cut to the size the layer behind it is used to, and the norms' gains.

    Behind a cut the stream is read as x * d, d_k = mean|x_k behind| / mean|x_k before|. A checkpoint cannot hold
    a multiplication of the stream, so what reads it takes the scale and what writes it takes its inverse; then the
    norms see x instead of x * d, whose root mean square differs by the gain, estimated from the target's own stream.

    Source: the channel scale d of Chen et al. 2025, "LinearPatch" (arXiv 2505.24680), without its Hadamard rotation,
    which would need a module of its own. Folding it into the weights is ours.
    """
    import numpy as np  # imported here: `widedraft check` must answer at once

    mean_JH, spread_JH = scores.need("mean_abs_JH"), scores.need("spread_JH")
    total_H = np.ones(source.hidden)
    cuts, gains = [], []
    ends = (*layers, source.layers)
    for draft_layer, layer in enumerate(ends):
        came_from = 0 if draft_layer == 0 else ends[draft_layer - 1] + 1
        if layer > came_from:
            total_H = total_H * mean_JH[layer] / np.maximum(mean_JH[came_from], np.finfo(np.float32).tiny)
            cuts.append(Cut(layer=draft_layer, scale=tuple(float(value) for value in total_H)))
        gains.append(float(np.sqrt((spread_JH[layer] / total_H**2).mean())))
    return tuple(cuts), tuple(gains) if cuts else ()
