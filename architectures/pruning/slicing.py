"""A draft's tensor out of the target's: merge layers, take the kept entries of each axis, keep the sums right.

Removing a channel is made equal to that channel being zero in the target: a norm over fewer channels divides by a
larger root mean square, so its weight grows by sqrt(channels before / after), and its epsilon by the square of that.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import sqrt

import torch
from torch import Tensor

from architectures.families import FAMILIES
from architectures.families.family import Part
from architectures.pruning.plan import PruningPlan
from architectures.shapes.shape import Shape
from architectures.vocabulary_head import fit_rows

READERS = ("attention_norm", "ffn_norm")  # norms that read the residual stream
WRITERS = ("attention_output", "ffn_down")  # linears that write it, unless a norm stands behind them
POST_NORMS = ("attention_post_norm", "ffn_post_norm")


@dataclass(frozen=True)
class TensorLocation:
    """Where a tensor of the draft stands.

    Attributes:
        role: As families name it.
        kind: weight or bias.
        layer: Its number; None outside the layers.
        prefix: What stands before that number.
        in_encoder: Whether it is a layer of the encoder, where there is one.
    """

    role: str
    kind: str
    layer: int | None
    prefix: str = ""
    in_encoder: bool = False


def tensor_locations(shape: Shape) -> dict[str, TensorLocation]:
    """Where every tensor of a model stands, under its name."""
    family = FAMILIES[shape.family]
    locations = located(shape, family.outside, TensorLocation("", "", None))
    for layer in range(shape.layers):
        locations |= located(shape, family.layer, TensorLocation("", "", layer, family.layer_prefix))
    if (encoder := family.encoder) is not None:
        for layer in range(shape.encoder_layers):
            locations |= located(
                shape, encoder.layer, TensorLocation("", "", layer, encoder.layer_prefix, in_encoder=True)
            )
    return locations


def located(shape: Shape, parts: Mapping[str, Part], at: TensorLocation) -> dict[str, TensorLocation]:
    """Where the tensors of some modules stand, all in one layer or outside the layers."""
    before = "" if at.layer is None else f"{at.prefix}{at.layer}."
    return {
        f"{before}{parts[role].name}.{kind}": replace(at, role=role, kind=kind)
        for tensor in shape.part_tensors(parts)
        for role, kind in [tensor.rsplit(".", 1)]
    }


def draft_tensor(plan: PruningPlan, location: TensorLocation, name: str, read: Callable[[str], Tensor]) -> Tensor:
    """One tensor of the draft, in the target's dtype; computed in float32 where it is more than a copy.

    Args:
        plan: What is kept.
        location: Of the tensor.
        name: Of the tensor in the draft.
        read: Gives a tensor of the target by name.
    """
    part = part_of(plan, location)
    tensor = merged(plan, location, name, read)
    axes = part.axes if location.kind == "weight" else (str(part.bias_axis),)
    for dim, axis in enumerate(axes):
        kept = kept_entries(plan, axis, location.layer)
        if kept is not None:
            tensor = tensor.index_select(dim, kept)
    tensor = scaled(plan, location, axes, tensor)
    if axes[0] == "head_rows":
        return head_of_draft(plan, tensor)
    return fit_rows(tensor, plan.draft.vocab) if axes[0] == "vocab" else tensor


def head_of_draft(plan: PruningPlan, rows_VX: Tensor) -> Tensor:
    """The rows of the output head for the ids that the draft outputs; a head that was cut before stays as it is."""
    if plan.source.head_vocab:
        return rows_VX
    rows_VX = fit_rows(rows_VX, plan.draft.vocab)
    return rows_VX if plan.vocabulary is None else rows_VX[torch.tensor(plan.vocabulary)]


def part_of(plan: PruningPlan, location: TensorLocation) -> Part:
    """The module that a tensor of the draft belongs to."""
    family = FAMILIES[plan.source.family]
    if location.in_encoder and family.encoder is not None:
        return family.encoder.layer[location.role]
    return (family.outside if location.layer is None else family.layer)[location.role]


def merged(plan: PruningPlan, location: TensorLocation, name: str, read: Callable[[str], Tensor]) -> Tensor:
    """The target's tensor, or the sum of a group of layers' differences from its first.

    Source: Yang et al. 2024, "LaCo", sec. 3.1 (arXiv 2402.11187): theta_l + sum_k (theta_l+k - theta_l).
    """
    first = read(source_name(plan, location, name))
    if location.layer is None or location.in_encoder or not plan.merged_layers:
        return first
    total, rest = first.float(), name.removeprefix(f"{location.prefix}{location.layer}.")
    for other in plan.merged_layers[location.layer]:
        total = total + (read(f"{location.prefix}{other}.{rest}").float() - first.float())
    return total.to(first.dtype)


def source_name(plan: PruningPlan, location: TensorLocation, name: str) -> str:
    """What the source calls a tensor of the draft: that of the layer it comes from, of merged ones the first.

    A tied head that becomes one of its own comes from the embedding.
    """
    if location.layer is not None:
        layers = plan.encoder_layers if location.in_encoder else plan.source_layers
        rest = name.removeprefix(f"{location.prefix}{location.layer}.")
        return f"{location.prefix}{layers[location.layer]}.{rest}"
    if location.role == "head" and plan.source.tied and not plan.draft.tied:
        return FAMILIES[plan.source.family].weight("embedding")
    return name


def kept_entries(plan: PruningPlan, axis: str, layer: int | None) -> Tensor | None:
    """Which entries of an axis stay; None for all. The parts of a fused axis lie one after the other."""
    if "+" not in axis:
        return kept_of_plain_axis(plan, axis, layer)
    pieces, start = [], 0
    for part in axis.split("+"):
        kept, size = kept_of_plain_axis(plan, part, layer), plan.source.axis(part)
        pieces.append(start + (torch.arange(size) if kept is None else kept))
        start += size
    return None if sum(map(len, pieces)) == start else torch.cat(pieces)


def kept_of_plain_axis(plan: PruningPlan, axis: str, layer: int | None) -> Tensor | None:
    """Which entries of an axis that is not fused stay; None for all."""
    if axis == "hidden":
        return None if plan.channels is None else torch.tensor(plan.channels)
    chosen = {"intermediate": plan.neurons, "query": plan.heads, "key_value": plan.kv_heads}.get(axis)
    if chosen is None or layer is None:
        return None
    kept = torch.tensor(chosen[layer])
    if axis == "intermediate":
        return kept
    return (kept[:, None] * plan.source.head_dim + torch.arange(plan.source.head_dim)).flatten()


def scaled(plan: PruningPlan, location: TensorLocation, axes: tuple[str, ...], tensor: Tensor) -> Tensor:
    """Multiply by what fewer channels ask for; the tensor itself where they ask nothing."""
    if plan.channels is None:
        return tensor
    family, growth = FAMILIES[plan.source.family], sqrt(plan.source.hidden / plan.draft.hidden)
    if location.role == "embedding" and family.scaled_embedding:
        return (tensor.float() * growth).to(tensor.dtype)
    if location.role not in (*READERS, *POST_NORMS, "final_norm") or axes != ("hidden",) or location.kind != "weight":
        return tensor
    if location.role == "final_norm" and plan.draft.tied and family.scaled_embedding:
        return tensor  # the tied head has grown by as much
    return ((tensor.float() + family.norm_offset) * growth - family.norm_offset).to(tensor.dtype)
