"""A PruningPlan and a model's weights become a draft folder, tensor by tensor.

Everything the plan does not change is carried over: bits of the weights and config entries from the model the draft is
cut out of; tokenizer, generation settings and special ids from the target, which mostly is the same.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from architectures.checkpoints.target_files import carry_files, require_tokenizer, with_special_ids
from architectures.checkpoints.weights import (
    TensorInfo,
    Weights,
    open_weights,
    require_replaceable,
    require_tensors,
    write_weights,
)
from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.families.family import Family
from architectures.files.atomic import staged_folder, write_json, write_text
from architectures.pruning.plan import PLAN_NAME, PruningPlan
from architectures.pruning.slicing import draft_tensor, source_name, tensor_locations
from architectures.shapes.shape import Shape, checkpoint_tensors
from architectures.targets.target import read_config
from architectures.vocabulary import CONFIG_KEY, DraftVocabulary, read_draft_vocabulary, write_draft_vocabulary


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
    """Write the draft that plan cuts out of source: weights, config.json, tokenizer, generation settings, plan.json.

    The folder appears whole or not at all. Tied embeddings stay tied, and no second copy of them is written.

    Args:
        source: A Hugging Face folder with safetensors.
        plan: Made for this source's shape; its draft has the target's vocabulary size.
        out: The draft folder; an earlier draft there is replaced.
        target: The folder of the model it will draft for, whose tokenizer and generation settings it takes; None where
            that is the source.
        dtype: float32, bfloat16 or float16 for every weight; None keeps each tensor's own.
        origin: Where the ids of plan.vocabulary come from, for who opens the draft.
        finish: Called with the folder before it takes its place; may add files.

    Raises:
        UserError: If the source is incomplete or of an unknown family, the target has no tokenizer, or out holds
            something else.
        ValueError: If plan was made for another shape.
    """
    target, config = target or source, read_config(source)
    shape = Shape.from_config(config, where=str(source / "config.json"))
    if shape != plan.source:
        raise ValueError(f"the plan was made for {plan.source}, {source} is {shape}.")
    weights = open_weights(source, base_prefix=FAMILIES[shape.family].base_prefix)
    require_whole_source(weights, shape)
    require_tokenizer(target)
    for folder in (source, target):
        require_replaceable(out, PLAN_NAME, reading=folder)

    locations = tensor_locations(plan.draft)
    layout = draft_layout(plan, weights, dtype)

    def read(name: str) -> Tensor:
        tensor = draft_tensor(plan, locations[name], name, lambda original: require_numbers(weights, original))
        return tensor.to(layout[name].dtype)

    with staged_folder(out) as folder:
        write_weights(layout, read, folder)
        write_json(with_special_ids(draft_config(config, plan, dtype), read_config(target)), folder / "config.json")
        write_text(plan.to_json(), folder / PLAN_NAME)
        say_vocabulary(plan, source, folder, origin or {})
        carry_files(target, folder)
        if finish is not None:
            finish(folder)


def say_vocabulary(plan: PruningPlan, source: Path, folder: Path, origin: Mapping[str, Any]) -> None:
    """Write beside the weights which ids the rows of a small head output; nothing where they output all.

    Of a source whose head is small they are the source's; the target's vocabulary may be padded otherwise.
    """
    if plan.vocabulary is not None:
        write_draft_vocabulary(DraftVocabulary(ids=plan.vocabulary, vocab_size=plan.draft.vocab, origin=origin), folder)
    elif plan.draft.head_vocab:
        write_draft_vocabulary(replace(read_draft_vocabulary(source), vocab_size=plan.draft.vocab), folder)


def require_whole_source(weights: Weights, source: Shape) -> None:
    """The source holds exactly the tensors its config promises; a stored copy of a tied embedding must be a copy."""
    family = FAMILIES[source.family]
    expected, head, embedding = checkpoint_tensors(source), family.weight("head"), family.weight("embedding")
    tied = [head] if source.tied else []
    stored = [name for name in (*tied, *family.stored_copies) if name in weights.info]
    expected |= dict.fromkeys(stored, (source.vocab, source.hidden))
    require_tensors(weights, expected, ignored=family.ignored_suffixes)
    for name in stored:
        if not torch.equal(weights.read(name), weights.read(embedding)):
            fix = "and both stacks of such a model read one embedding. Use another target."
            if name == head:
                fix = (
                    "but config.json says tie_word_embeddings true. Set it to false if the head has weights of its "
                    "own, else remove the head."
                )
            raise UserError(f"{weights.files[name]}: {name} differs from {embedding}, {fix}")


def draft_layout(plan: PruningPlan, weights: Weights, dtype: str | None) -> dict[str, TensorInfo]:
    """Dtype and size of every tensor of the draft; without a dtype each keeps that of the layer it comes from."""
    layout, locations = {}, tensor_locations(plan.draft)
    for name, size in checkpoint_tensors(plan.draft).items():
        source = source_name(plan, locations[name], name)
        layout[name] = TensorInfo(weights.info[source].dtype if dtype is None else getattr(torch, dtype), size)
    return layout


def require_numbers(weights: Weights, name: str) -> Tensor:
    """A tensor of the source, if every entry is a finite number.

    Raises:
        UserError: If there is a NaN or an infinity in it; names the tensor.
    """
    tensor = weights.read(name)
    if tensor.numel() and not torch.stack(tensor.aminmax()).isfinite().all():
        raise UserError(
            f"{weights.files[name]}: {name} holds NaN or infinity. A draft of it could not speak: "
            "fetch the checkpoint again."
        )
    return tensor


# --- config.json ----------------------------------------------------------------------------------------------------


def draft_config(config: Mapping[str, Any], plan: PruningPlan, dtype: str | None) -> dict[str, Any]:
    """The config with the cut applied and every size an engine might guess written out."""
    family = FAMILIES[plan.draft.family]
    draft = {key: value for key, value in config.items() if key != "_name_or_path"}
    sizes = ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim") if family.width else ("layers",)
    depth = ("encoder_layers",) if family.encoder is not None else ()
    draft |= {family.keys[size]: getattr(plan.draft, size) for size in (*sizes, *depth, "vocab")}
    draft["tie_word_embeddings"] = plan.draft.tied
    if plan.draft.head_vocab:
        draft[CONFIG_KEY] = plan.draft.head_vocab
    if plan.channels is not None:
        eps = config.get(family.keys["norm_eps"], family.default_norm_eps)
        draft[family.keys["norm_eps"]] = eps * plan.source.hidden / plan.draft.hidden  # as the mean square grows
    draft.setdefault("architectures", [family.architecture])
    draft |= cut_layer_entries(config, plan, family)
    return draft if dtype is None else with_dtype(draft, dtype)


def with_dtype(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """A config that names another dtype, under the key it uses: transformers 4 wrote torch_dtype, 5 writes dtype."""
    keys = [key for key in ("dtype", "torch_dtype") if key in config] or ["dtype"]
    return {**config, **dict.fromkeys(keys, dtype)}


def cut_layer_entries(config: Mapping[str, Any], plan: PruningPlan, family: Family) -> dict[str, Any]:
    """The config entries that speak of single layers, for the layers that are kept."""
    cut: dict[str, Any] = {}
    for key in family.per_layer_lists:
        if config.get(key) is not None:
            if len(config[key]) != plan.source.layers:
                raise UserError(
                    f"config.json: {key} has {len(config[key])} entries for {plan.source.layers} layers. "
                    "Take the config.json the checkpoint came with."
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
