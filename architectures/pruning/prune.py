"""Prune a model into a draft directory by a PruningPlan, tensor by tensor.

Everything the plan does not change is carried over: bits of the weights and config entries from the source model;
tokenizer, generation settings and special ids from the target, which usually is the source.

Removing a channel equals that channel being zero in the target: a norm over fewer channels divides by a larger root
mean square, so its weight grows by sqrt(channels before / after), and its epsilon by the square of that.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from architectures.checkpoint import (
    TensorInfo,
    Weights,
    open_weights,
    require_numbers,
    require_replaceable,
    require_tensors,
    write_weights,
)
from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.families.family import Family
from architectures.files import staged_folder, write_json, write_text
from architectures.hub import read_config
from architectures.pruning.plan import PLAN_NAME, PruningPlan
from architectures.requested_shape import OF_SOME
from architectures.shapes import (
    OtherShape,
    Shape,
    TensorLocation,
    checkpoint_tensors,
    model_shape,
    rope_for_transformers_4,
    tensor_locations,
)
from architectures.target_files import carry_files, require_tokenizer, with_special_ids
from architectures.vocabulary import CONFIG_KEY, DraftVocabulary, read_draft_vocabulary, write_draft_vocabulary
from architectures.vocabulary_head import fit_rows

READERS = ("attention_norm", "ffn_norm")  # norms that read from the residual stream
WRITERS = ("attention_output", "ffn_down")  # linears that write to it, unless a norm follows them
POST_NORMS = ("attention_post_norm", "ffn_post_norm")


def draft_tensor(plan: PruningPlan, location: TensorLocation, name: str, read: Callable[[str], Tensor]) -> Tensor:
    """Compute one tensor of the draft, in the target's dtype; in float32 if it is more than a copy."""
    tensor, part = merged(plan, location, name, read), location.part
    axes = part.axes[-2:] if location.kind == "weight" else (str(part.bias_axis),)
    for dim, axis in enumerate(axes):
        kept = kept_entries(plan, axis, location.layer)
        if kept is not None:
            tensor = tensor.index_select(dim, kept)
    tensor = scaled(plan, location, axes, tensor)
    if axes[0] == "head_rows":
        return head_of_draft(plan, tensor)
    return fit_rows(tensor, plan.draft.vocab) if axes[0] == "vocab" else tensor


def head_of_draft(plan: PruningPlan, rows_VX: Tensor) -> Tensor:
    """Return the head's rows of the ids that the draft outputs; an already reduced head stays unchanged."""
    if plan.source.head_vocab:
        return rows_VX
    rows_VX = fit_rows(rows_VX, plan.draft.vocab)
    return rows_VX if plan.vocabulary is None else rows_VX[torch.tensor(plan.vocabulary)]


def merged(plan: PruningPlan, location: TensorLocation, name: str, read: Callable[[str], Tensor]) -> Tensor:
    """Return the target's tensor, plus for a merged group the differences of its layers from the first.

    Source: Yang et al. 2024, "LaCo", sec. 3.1 (arXiv 2402.11187): theta_l + sum_k (theta_l+k - theta_l).
    """
    first = read(source_name(plan, location, name))
    if location.layer is None or location.in_encoder or not plan.merged_layers:
        return first
    total, rest = first.float(), name_in_layer(plan, location, name)
    for other in plan.merged_layers[location.layer]:
        total = total + (read(f"{location.prefix}{other}.{rest}").float() - first.float())
    return total.to(first.dtype)


def source_name(plan: PruningPlan, location: TensorLocation, name: str) -> str:
    """Return the source's name for a tensor of the draft; the first layer's for a merged group.

    A tied head that becomes untied is copied from the embedding.
    """
    if location.layer is not None:
        layers = plan.encoder_layers if location.in_encoder else plan.source_layers
        return f"{location.prefix}{layers[location.layer]}.{name_in_layer(plan, location, name)}"
    if location.role == "head" and plan.source.tied and not plan.draft.tied:
        return FAMILIES[plan.source.family].weight("embedding")
    return name


def name_in_layer(plan: PruningPlan, location: TensorLocation, name: str) -> str:
    """Return the name in a layer of the source for a tensor in a layer of the draft; experts may be renumbered."""
    if plan.experts is not None and location.part.stacked and location.layer is not None:
        return f"{location.part.name.format(plan.experts[location.layer][location.expert])}.{location.kind}"
    return name.removeprefix(f"{location.prefix}{location.layer}.")


def kept_entries(plan: PruningPlan, axis: str, layer: int | None) -> Tensor | None:
    """Return the kept indices of an axis; None for all. The parts of a fused axis are concatenated."""
    if "+" not in axis:
        return kept_of_plain_axis(plan, axis, layer)
    pieces, start = [], 0
    for part in axis.split("+"):
        kept, size = kept_of_plain_axis(plan, part, layer), plan.source.axis(part)
        pieces.append(start + (torch.arange(size) if kept is None else kept))
        start += size
    return None if sum(map(len, pieces)) == start else torch.cat(pieces)


def kept_of_plain_axis(plan: PruningPlan, axis: str, layer: int | None) -> Tensor | None:
    if axis == "hidden":
        return None if plan.channels is None else torch.tensor(plan.channels)
    parts = {**dict.fromkeys(("intermediate", "expert_width"), plan.neurons), "experts": plan.experts}
    chosen = {**parts, "query": plan.heads, "key_value": plan.kv_heads}.get(axis)
    if chosen is None or layer is None:
        return None
    kept = torch.tensor(chosen[layer])
    if axis in parts:
        return kept
    return (kept[:, None] * plan.source.head_dim + torch.arange(plan.source.head_dim)).flatten()


def scaled(plan: PruningPlan, location: TensorLocation, axes: tuple[str, ...], tensor: Tensor) -> Tensor:
    """Rescale for a smaller number of channels; return the tensor itself if nothing changes."""
    if plan.channels is None:
        return tensor
    family, growth = FAMILIES[plan.source.family], sqrt(plan.source.hidden / plan.draft.hidden)
    if location.role == "embedding" and family.scaled_embedding:
        return (tensor.float() * growth).to(tensor.dtype)
    if location.role not in (*READERS, *POST_NORMS, "final_norm") or axes != ("hidden",) or location.kind != "weight":
        return tensor
    if location.role == "final_norm" and plan.draft.tied and family.scaled_embedding:
        return tensor  # the tied head has grown by the same factor
    return ((tensor.float() + family.norm_offset) * growth - family.norm_offset).to(tensor.dtype)


def prune_checkpoint(
    source: Path,
    plan: PruningPlan,
    out: Path,
    *,
    target: Path | None = None,
    dtype: str | None = None,
    origin: Mapping[str, Any] | None = None,
    finish: Callable[[Path], None] | None = None,
) -> None:
    """Write the draft of a plan: weights, config.json, tokenizer, generation settings, plan.json.

    The directory is written atomically. Tied embeddings stay tied and are written once.

    Args:
        plan: Made for this source's shape, else ValueError; its draft has the target's vocabulary size.
        out: An earlier draft there is replaced.
        target: Source of tokenizer and generation settings; None if it is `source`.
        dtype: float32, bfloat16 or float16 for every weight; None keeps each tensor's own.
        origin: Provenance of plan.vocabulary, recorded.
        finish: Called with the directory before it takes its place; may add files.

    Raises:
        UserError: If the source is incomplete or of an unknown family, the target has no tokenizer, or out contains
            something else.
    """
    target, config = target or source, read_config(source)
    shape = model_shape(config, where=str(source / "config.json"))
    if shape != plan.source:
        raise ValueError(f"the plan is for {plan.source}, but {source} is {shape}.")
    require_tokenizer(target)
    for folder in (source, target):
        require_replaceable(out, PLAN_NAME, reading=folder)

    if isinstance(shape, OtherShape):
        from architectures.pruning.depth import prune_depth  # loads transformers

        layout, read, pruned_config = prune_depth(source, config, plan, dtype)
    else:
        layout, read, pruned_config = prune_family(source, config, plan, dtype)
    with staged_folder(out) as folder:
        write_weights(layout, read, folder)
        write_json(with_special_ids(pruned_config, read_config(target)), folder / "config.json")
        write_text(plan.to_json(), folder / PLAN_NAME)
        # A reduced head's ids; the target's vocabulary may be padded differently than that of a source which has them.
        if plan.vocabulary is not None:
            ids = DraftVocabulary(ids=plan.vocabulary, vocab_size=plan.draft.vocab, origin=origin or {})
            write_draft_vocabulary(ids, folder)
        elif plan.draft.head_vocab:
            write_draft_vocabulary(replace(read_draft_vocabulary(source), vocab_size=plan.draft.vocab), folder)
        carry_files(target, folder)
        if finish is not None:
            finish(folder)


def prune_family(
    source: Path, config: Mapping[str, Any], plan: PruningPlan, dtype: str | None
) -> tuple[dict[str, TensorInfo], Callable[[str], Tensor], dict[str, Any]]:
    """Return layout, reader and config.json of a draft of a known family."""
    weights = open_weights(source, base_prefix=FAMILIES[plan.source.family].base_prefix)
    require_whole_source(weights, plan.source)
    locations, layout = tensor_locations(plan.draft), dict[str, TensorInfo]()
    for name, location in locations.items():
        own = weights.info[source_name(plan, location, name)].dtype
        layout[name] = TensorInfo(own if dtype is None else getattr(torch, dtype), location.size)

    def read(name: str) -> Tensor:
        tensor = draft_tensor(plan, locations[name], name, lambda original: require_numbers(weights, original))
        return tensor.to(layout[name].dtype)

    return layout, read, draft_config(config, plan, dtype)


def require_whole(weights: Weights, shape: Shape) -> list[str]:
    """Check that a checkpoint has exactly its config's tensors; return the stored copies of a tied embedding."""
    family = FAMILIES[shape.family]
    tied = [family.weight("head")] if shape.tied else []
    copies = [name for name in (*tied, *family.stored_copies) if name in weights.info]
    expected = checkpoint_tensors(shape) | dict.fromkeys(copies, (shape.vocab, shape.hidden))
    require_tensors(weights, expected, ignored=family.ignored_suffixes)
    return copies


def require_whole_source(weights: Weights, source: Shape) -> None:
    """Check that the source has exactly its config's tensors, and that a stored copy of a tied embedding is equal."""
    family = FAMILIES[source.family]
    head, embedding = family.weight("head"), family.weight("embedding")
    for name in require_whole(weights, source):
        if not torch.equal(weights.read(name), weights.read(embedding)):
            fix = "but both stacks share one embedding. Use another target."
            if name == head:
                fix = (
                    "but config.json has tie_word_embeddings: true. Set it to false if the head has separate "
                    "weights, else remove the head."
                )
            raise UserError(f"{weights.files[name]}: {name} differs from {embedding}, {fix}")


# --- config.json ----------------------------------------------------------------------------------------------------


def draft_config(config: Mapping[str, Any], plan: PruningPlan, dtype: str | None) -> dict[str, Any]:
    """Return the pruned config, with every size written out that an engine might guess."""
    family = FAMILIES[plan.draft.family]
    # transformers 5 writes num_experts under another name, which engines may not read.
    draft = {key: value for key, value in config.items() if key not in ("_name_or_path", "num_local_experts")}
    sizes = ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim") if family.width else ("layers",)
    of_some = [size for size in OF_SOME if size in family.keys]
    draft |= {family.keys[size]: getattr(plan.draft, size) for size in (*sizes, *of_some, "vocab")}
    draft["tie_word_embeddings"] = plan.draft.tied
    if plan.draft.head_vocab:
        draft[CONFIG_KEY] = plan.draft.head_vocab
    if plan.channels is not None:
        eps = config.get(family.keys["norm_eps"], family.default_norm_eps)
        draft[family.keys["norm_eps"]] = eps * plan.source.hidden / plan.draft.hidden  # as the mean square grows
    draft.setdefault("architectures", [family.architecture])
    draft |= cut_layer_entries(config, plan, family)
    draft |= rope_for_transformers_4(draft)
    return draft if dtype is None else with_dtype(draft, dtype)


def with_dtype(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Return a config with another dtype, under the key it uses: transformers 4 wrote torch_dtype, 5 writes dtype."""
    keys = [key for key in ("dtype", "torch_dtype") if key in config] or ["dtype"]
    return {**config, **dict.fromkeys(keys, dtype)}


def cut_layer_entries(config: Mapping[str, Any], plan: PruningPlan, family: Family) -> dict[str, Any]:
    """Return the config's per-layer entries for the layers that are kept."""
    cut: dict[str, Any] = {}
    for key in family.per_layer_lists:
        if config.get(key) is not None:
            if len(config[key]) != plan.source.layers:
                raise UserError(
                    f"config.json: {key} has {len(config[key])} entries for {plan.source.layers} layers. "
                    "Use the config.json that came with the checkpoint."
                )
            cut[key] = [config[key][layer] for layer in plan.source_layers]
    if family.window_pattern is not None and config.get("layer_types") is None:
        period = config.get(family.window_pattern.key, family.window_pattern.default)
        kinds = ("full_attention", "sliding_attention")
        cut["layer_types"] = [kinds[(layer + 1) % period != 0] for layer in plan.source_layers]
    rotary = family.rotary_layers(config, plan.source.layers)
    if rotary is not None:
        cut["no_rope_layers"] = [rotary[layer] for layer in plan.source_layers]
    if family.window_layers is not None:
        first_window = config.get(family.window_layers.key, family.window_layers.default)
        cut[family.window_layers.key] = sum(layer < first_window for layer in plan.source_layers)
    return cut
