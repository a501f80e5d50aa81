"""Pruning plan (plan.json): the source of every part of a draft, its validation, and importance scores. No torch.

Shape suffixes used in this file:
    L = layers
    N = query heads
    F = neurons
    H = channels
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from architectures.errors import UserError
from architectures.files import parsed, read_text, write_bytes
from architectures.manifest import fingerprint_checkpoint
from architectures.requested_shape import WIDTHS, ArchitectureConfig, draft_shape, masked_shape
from architectures.shapes import OtherShape, Shape
from architectures.vocabulary import broken_law

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

PLAN_NAME = "plan.json"
PLAN_MIB = 256  # a plan that lists every neuron of 80 layers has about 10 MB
HINT = "Pass a plan.json written by `widedraft prune`."
Kept = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PruningPlan:
    """Source of every part of the draft; all indices start at 0.

    Attributes:
        source_layers: For each draft layer, the target's layer it is copied from.
        merged_layers: For each draft layer, the target's layers merged into it; empty if none are merged.
        neurons: Kept feed-forward neurons of each draft layer; None keeps all.
        heads: Kept query heads of each draft layer; None keeps all.
        kv_heads: Kept key/value heads of each draft layer; None keeps all.
        experts: Kept experts of each draft layer; None keeps all.
        channels: Kept channels of the residual stream; None keeps all.
        vocabulary: Token ids with a row in the output head, ascending; None keeps all.
        encoder_layers: For each encoder block of the draft, the target's block; empty for decoder-only models.
        target: Fingerprint of the checkpoint this plan was made for; None if it fits any of this shape.
    """

    source_layers: Kept
    source: Shape | OtherShape
    draft: Shape | OtherShape
    method: str
    merged_layers: tuple[Kept, ...] = ()
    neurons: tuple[Kept, ...] | None = None
    heads: tuple[Kept, ...] | None = None
    kv_heads: tuple[Kept, ...] | None = None
    channels: Kept | None = None
    vocabulary: Kept | None = None
    target: str | None = None
    encoder_layers: Kept = ()
    experts: tuple[Kept, ...] | None = None

    def with_vocab(self, vocab: int) -> "PruningPlan":
        """Return this plan for a target with another vocab_size than the source's."""
        return replace(self, draft=replace(self.draft, vocab=vocab))

    def with_vocabulary(self, ids: Kept) -> "PruningPlan":
        """Return this plan with an untied output head for these ids."""
        return replace(self, vocabulary=ids, draft=self.draft.with_head_of(len(ids)))

    def to_json(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    def summary(self) -> str:
        """Return the kept parts in one line."""
        merged = " (others merged in)" if self.merged_layers else ""
        parts = [f"keeps {listed(self.source_layers, self.source.layers)}{merged}"]
        if self.encoder_layers:
            whole = len(self.encoder_layers) == self.source.encoder_layers
            parts.append(
                "the whole encoder" if whole else f"encoder {listed(self.encoder_layers, self.source.encoder_layers)}"
            )
        for name in WIDTHS:
            kept, of = getattr(self.draft, name), getattr(self.source, name)
            parts += [f"{name} {kept} of {of}"] if kept != of else []
        if self.vocabulary is not None:
            parts.append(f"output ids {self.draft.head_vocab} of {self.draft.vocab}")
        return ", ".join(parts)

    @classmethod
    def from_json(cls, text: str, *, where: str = PLAN_NAME) -> "PruningPlan":
        """Parse the output of to_json; UserErrors begin with `where`."""
        return parsed(TypeAdapter(cls), text, f"{where}: not a plan.json of widedraft", HINT)


def listed(layers: Kept, num_source: int) -> str:
    """Format layers (0, 3) of 4 as "layers 0, 3 of 0 to 3"."""
    return f"layer{'' if len(layers) == 1 else 's'} {', '.join(map(str, layers))} of 0 to {num_source - 1}"


def load_plan(file: Path, source: Shape, *, target: Path | None) -> PruningPlan:
    """Load a plan; UserError if it cannot be read or was made for another target.

    Args:
        target: The target's directory, whose fingerprint is compared; None compares only shapes.
    """
    plan = PruningPlan.from_json(read_text(file, hint=HINT, most_mib=PLAN_MIB), where=str(file))
    fingerprint = plan.target if target is None else fingerprint_checkpoint(target)
    if plan.source != source or plan.target != fingerprint:
        made_for, this = (str(each)[:12] for each in (plan.target, fingerprint))
        raise UserError(
            f"{file}: belongs to another target (fingerprint {made_for}, {plan.source.layers} layers) than this one "
            f"({this}, {source.layers} layers). Create a plan for this target, or use the other target."
        )
    if (name := wrong_field(plan)) is not None:
        raise UserError(f"{file}: {name} does not match the sizes of source and draft. {HINT}")
    return plan


def wrong_field(plan: PruningPlan) -> str | None:
    """Return the first field that contradicts the sizes of source and draft; None if the plan is valid."""
    source, draft, ids = plan.source, plan.draft, plan.vocabulary
    sizes = {name: getattr(source, name) for name in ("layers", "encoder_layers", *WIDTHS)}
    head = {} if ids is None else {"head_vocab": source.head_vocab, "tied": source.tied}
    fits = all(0 < getattr(draft, name) <= of for name, of in sizes.items() if of)
    fits &= draft.experts >= min(draft.active_experts, source.experts)
    if not fits or draft.vocab < 1 or replace(draft, vocab=source.vocab, **sizes, **head) != source:
        return "draft"
    if ids is not None and (
        source.head_vocab or draft.tied or draft.head_vocab != len(ids) or broken_law(ids, draft.vocab) is not None
    ):
        return "vocabulary"
    merged = {layer for each in plan.merged_layers for layer in each}
    if len(plan.merged_layers) not in (0, draft.layers) or not merged <= {*range(source.layers)}:
        return "merged_layers"
    lists = {  # name: (lists, number of lists, size of each, size in the source)
        "source_layers": ((plan.source_layers,), 1, draft.layers, source.layers),
        "encoder_layers": ((plan.encoder_layers,), 1, draft.encoder_layers, source.encoder_layers),
        "neurons": (plan.neurons, draft.layers, draft.intermediate, source.intermediate),
        "heads": (plan.heads, draft.layers, draft.heads, source.heads),
        "kv_heads": (plan.kv_heads, draft.layers, draft.kv_heads, source.kv_heads),
        "experts": (plan.experts, draft.layers, draft.experts, source.experts),
        "channels": (plan.channels and (plan.channels,), 1, draft.hidden, source.hidden),
    }
    for name, (choices, count, kept, of) in lists.items():
        given = () if choices is None else choices
        chosen = all(len(each) == kept == len({*each} & {*range(of)}) for each in given)
        if not chosen or (kept != of if choices is None else len(given) != count):
            return name
    return None


SCORES_NAME = "scores.safetensors"
LAYER_SCORES = {"block_influence": "block_influence_L", "greedy": "removal_order", "merge": "merge_order"}
WIDTH_SCORES = {"intermediate": "neurons_LF", "heads": "heads_LN", "hidden": "channels_H", "experts": "experts_LE"}


@dataclass(frozen=True)
class Scores:
    """Named arrays, computed once from calibration text for every shape. Parts with higher scores are kept.

    block_influence_L: 1 - cos between a layer's input and output, mean over tokens.
    removal_order: L - 1 layers in greedy order, the removal that increases the loss least first.
    merge_order: L - 1 layers, in the order in which each is merged into its predecessors.
    <method>.neurons_LF (or .experts_LE), .heads_LN, .channels_H: for activation, flap and magnitude.
    """

    arrays: "dict[str, NDArray[np.float64]]" = field(default_factory=dict)

    def need(self, name: str) -> "NDArray[np.float64]":
        """Return an array; ValueError if it is missing."""
        if name not in self.arrays:
            raise ValueError(f"no scores for {name}, only for: {', '.join(self.arrays) or 'none'}.")
        return self.arrays[name]


def save_scores(file: Path, arrays: "Mapping[str, ArrayLike]") -> None:
    """Write scores in float64, atomically."""
    import numpy as np
    from safetensors.numpy import save

    write_bytes(save({name: np.ascontiguousarray(values, np.float64) for name, values in arrays.items()}), file)


def load_scores(file: Path) -> Scores:
    import numpy as np
    from safetensors.numpy import load_file

    return Scores({name: array.astype(np.float64) for name, array in load_file(file).items()})


def plan_pruning(
    source: Shape, config: ArchitectureConfig, scores: Scores | None = None, *, seed: int = 0, target: str | None = None
) -> PruningPlan:
    """Choose the parts to keep; UserError if the requested shape cannot be pruned from the target.

    Args:
        scores: Of the target; at least those of `needed_scores`.
        target: The target's fingerprint, recorded.
    """
    draft, scores = draft_shape(source, config), scores or Scores()

    # Layers; if they are merged, each group is its first layer and the layers up to the next group.
    layers = kept_layers(source.layers, draft.layers, config.method, scores, seed=seed)
    merged: tuple[Kept, ...] = ()
    if config.method == "merge" and draft.layers < source.layers:
        merged = followers(layers, source.layers)
    groups = [[start, *others] for start, others in zip(layers, merged or [()] * len(layers), strict=True)]

    def layer_scores(part: str, size: int) -> "Sequence[NDArray[np.float64]]":
        """Return neurons_LF, experts_LE or heads_LN per draft layer: the mean over its group of source layers."""
        values = part_scores(config, scores, part, (source.layers, size), seed=seed)
        return [values[group].mean(axis=0) for group in groups]

    # Heads, neurons, experts, channels; None if all are kept.
    neurons = experts = heads = kv_heads = channels = None
    if draft.intermediate != source.intermediate:
        neurons = tuple(best(row, draft.intermediate) for row in layer_scores("neurons_LF", source.intermediate))
    if draft.experts != source.experts:
        experts = tuple(best(row, draft.experts) for row in layer_scores("experts_LE", source.experts))
    if draft.heads != source.heads:
        chosen = [best_heads(row, source, draft) for row in layer_scores("heads_LN", source.heads)]
        heads = tuple(queries for queries, _ in chosen)
        kv_heads = None if draft.kv_heads == source.kv_heads else tuple(keys for _, keys in chosen)
    if draft.hidden != source.hidden:
        channels = best(part_scores(config, scores, "channels_H", (source.hidden,), seed=seed), draft.hidden)
    return PruningPlan(
        source_layers=layers,
        source=source,
        draft=draft,
        method=config.method,
        merged_layers=merged,
        neurons=neurons,
        heads=heads,
        kv_heads=kv_heads,
        channels=channels,
        target=target,
        encoder_layers=evenly_spaced(source.encoder_layers, draft.encoder_layers),
        experts=experts,
    )


def needed_scores(source: Shape, config: ArchitectureConfig) -> set[str]:
    """Return the names of the arrays that a plan needs: of the pruned parts, and none for learned masks."""
    if config.method == "learned_masks":
        return set()
    draft = draft_shape(source, config)
    needed: set[str] = set()
    if draft.layers < source.layers and config.method in LAYER_SCORES:
        needed.add(LAYER_SCORES[config.method])
    if config.width_method != "random":
        cut = [part for size, part in WIDTH_SCORES.items() if getattr(draft, size) < getattr(source, size)]
        needed |= {f"{config.width_method}.{part}" for part in cut}
    return needed


# --- layers ---------------------------------------------------------------------------------------------------------


def kept_layers(num_source: int, num_kept: int, method: str, scores: Scores, *, seed: int) -> Kept:
    """Return the source layer of every draft layer; the first one of a merged group."""
    if num_kept == num_source:
        return tuple(range(num_source))
    if method == "block_influence":
        return best(scores.need(LAYER_SCORES[method]), num_kept)
    if method in LAYER_SCORES:
        return without_removed(scores.need(LAYER_SCORES[method]), num_source, num_kept)
    if method == "random":
        import numpy as np

        return tuple(sorted(int(i) for i in np.random.default_rng(seed).permutation(num_source)[:num_kept]))
    return {"first_last": first_last, "evenly_spaced": evenly_spaced}[method](num_source, num_kept)


def first_last(num_source: int, num_kept: int) -> Kept:
    """Return the first num_kept - 1 layers and the last one: the middle of a deep model matters least.

    A single layer is the first: only it was trained to read plain embeddings. (SmolLM2-135M on 1024 tokens of GSM8K
    responses, greedy agreement with the target: layer 0 0.079, layer 29 0.002.)

    Source: the order in which ShortGPT (Men et al. 2024, arXiv 2403.03853) and Minitron (Sreenivas et al. 2024, arXiv
    2408.11796) drop layers, continued to the end.
    """
    if num_kept == 1:
        return (0,)
    return (*range(num_kept - 1), num_source - 1)


def evenly_spaced(num_source: int, num_kept: int) -> Kept:
    """Return the first, the last and evenly spaced layers between, rounded to the nearest, halves up.

    A step is at least 1, so no layer is repeated. A single layer is the first, as in first_last.
    """
    if num_kept == 1:
        return (0,)
    gaps = num_kept - 1
    return tuple((2 * i * (num_source - 1) + gaps) // (2 * gaps) for i in range(num_kept))


def without_removed(order: "NDArray[np.float64]", num_source: int, num_kept: int) -> Kept:
    """Return the layers left after the first num_source - num_kept steps of a removal order."""
    removed = {int(layer) for layer in order[: num_source - num_kept]}
    return tuple(layer for layer in range(num_source) if layer not in removed)


def followers(starts: Kept, num_source: int) -> tuple[Kept, ...]:
    """Return for each first layer of a group the remaining layers of that group."""
    ends = (*starts[1:], num_source)
    return tuple(tuple(range(start + 1, end)) for start, end in zip(starts, ends, strict=True))


# --- heads, neurons, channels ---------------------------------------------------------------------------------------


def part_scores(
    config: ArchitectureConfig, scores: Scores, part: str, sizes: tuple[int, ...], *, seed: int
) -> "NDArray[np.float64]":
    if config.width_method == "random":
        import numpy as np

        return np.random.default_rng(seed).random(sizes)
    return scores.need(f"{config.width_method}.{part}")


def best(scores_X: "Sequence[float] | NDArray[np.float64]", count: int) -> Kept:
    """Return the indices of the `count` highest scores, ascending; ties go to the lower index."""
    ranked = sorted(range(len(scores_X)), key=lambda index: (-scores_X[index], index))
    return tuple(sorted(ranked[:count]))


def best_heads(scores_N: "NDArray[np.float64]", source: Shape, draft: Shape) -> tuple[Kept, Kept]:
    """Return query and key/value heads to keep: the best groups, and equally many of the best heads in each.

    A group is the query heads that share one key/value head. Its score is the sum over the heads that would be kept.
    """
    group, kept = source.heads // source.kv_heads, draft.heads // draft.kv_heads
    inside = [best(scores_N[start : start + group], kept) for start in range(0, source.heads, group)]
    worth = [sum(scores_N[i * group + head] for head in heads) for i, heads in enumerate(inside)]
    groups = best(worth, draft.kv_heads)
    return tuple(i * group + head for i in groups for head in inside[i]), groups


def draft_and_origin(wanted: ArchitectureConfig, source: Shape, seed: int) -> tuple[Shape, str]:
    """Return the draft's shape, and how it is pruned from its source."""
    if wanted.plan is not None:
        plan = load_plan(Path(wanted.plan), source, target=None)
        return plan.draft, f"{wanted.plan}, layers {', '.join(map(str, plan.source_layers))}"
    if wanted.method == "learned_masks":
        return masked_shape(source, wanted), wanted.method
    draft = draft_shape(source, wanted)
    narrower = any(getattr(draft, name) != getattr(source, name) for name in WIDTHS)
    method = f"{wanted.method}, widths by {wanted.width_method}" if narrower else wanted.method
    if wanted.stages is not None:
        if wanted.stages[0] > source.layers:
            raise UserError(
                f"architecture.stages must begin with at most the {source.layers} layers of the target, got "
                f"{wanted.stages}. Choose fewer."
            )
        return draft, f"{method}, in stages of {', '.join(map(str, wanted.stages))} layers"
    if needed_scores(source, wanted):
        return draft, f"{method}, from scores"
    plan = plan_pruning(source, wanted, seed=seed)
    return draft, f"{method}, layers {', '.join(map(str, plan.source_layers))} of 0 to {source.layers - 1}"
