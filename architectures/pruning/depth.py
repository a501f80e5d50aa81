"""Depth pruning of decoders without an entry in FAMILIES: whole layers are removed, everything else is copied.

The layers are the model's list of num_hidden_layers blocks, and in the checkpoint the tensors numbered below its name.
Config entries that depend on the layers are pruned with them. The result is accepted only if transformers builds from
it, for every kept layer, the module that the source has there: same classes, parameter sizes and settings.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from architectures.checkpoint import TensorInfo, Weights, open_weights, require_numbers
from architectures.errors import UserError
from architectures.files import write_json
from architectures.pruning.plan import PruningPlan
from architectures.shapes import rope_for_transformers_4
from architectures.vocabulary_head import fit_rows

INDEX_LISTS = ("full_attn_idxs", "moe_layers", "mlp_only_layers", "attn_layer_indices", "hybrid_layer_ids")
# Number of layers at the beginning, or index of the first layer behind them.
FIRST_LAYERS = ("first_k_dense_replace", "num_dense_layers", "max_window_layers", "moe_layer_start_index")
LAST_LAYERS = ("num_kv_shared_layers",)  # number of layers at the end
NOT_PER_LAYER = ("architectures", "bos_token_id", "eos_token_id")
POSITION = re.compile(r"layer_(idx|index|id|number)$")  # settings of a module with the index of a layer


def prune_depth(
    source: Path, config: Mapping[str, Any], plan: PruningPlan, dtype: str | None
) -> tuple[dict[str, TensorInfo], Callable[[str], Tensor], dict[str, Any]]:
    """Return layout, reader and config.json of a draft with the layers of a plan.

    Args:
        config: The source's config.json.
        dtype: As in prune_checkpoint; parameters that the model keeps in float32 are not converted.

    Raises:
        UserError: If the config cannot be pruned consistently, or the checkpoint has no such layers.
    """
    where, kept = str(source / "config.json"), plan.source_layers
    whole, weights = empty_model(config, where), open_weights(source)
    pruned = {**config, **pruned_entries(whole.config, config, kept)}
    draft = empty_model(pruned, where)
    require_same_layers(whole, draft, kept, where)
    if counts_tokens(whole.config) and not counts_tokens(draft.config):
        raise UserError(
            f"{where}: layers {', '.join(map(str, kept))} are all recurrent, and transformers decodes no model without "
            "an attention layer. Keep one: try architecture.method first_last or evenly_spaced, or more layers."
        )
    list_name, _ = decoder_layers(whole)
    prefix = numbered_prefix(weights, list_name, plan.source.layers)
    sizes, draft_sizes = ({name: tuple(each.shape) for name, each in m.state_dict().items()} for m in (whole, draft))
    embeddings = {id(each.weight) for each in (whole.get_input_embeddings(), whole.get_output_embeddings()) if each}
    by_id = {name for name, each in whole.named_parameters(remove_duplicate=False) if id(each) in embeddings}
    ignored = [re.compile(each) for each in whole._keys_to_ignore_on_load_unexpected or ()]  # noqa: SLF001
    wide = {*(whole._keep_in_fp32_modules or ()), *(whole._keep_in_fp32_modules_strict or ())}  # noqa: SLF001

    layout: dict[str, TensorInfo] = {}
    origin: dict[str, str] = {}
    for name, info in weights.info.items():
        new = renumbered(name, prefix, kept)
        if new is None or any(each.search(name) for each in ignored):
            continue
        size = draft_sizes.get(name, info.size) if sizes.get(name) == info.size and new == name else info.size
        size = (plan.draft.vocab, *size[1:]) if name in by_id else size
        converts = dtype is not None and info.dtype.is_floating_point and not wide & {*name.split(".")}
        layout[new], origin[new] = TensorInfo(getattr(torch, str(dtype)) if converts else info.dtype, size), name

    def pruned_tensor(name: str) -> Tensor:
        tensor = require_numbers(weights, origin[name])
        if origin[name] in by_id:
            tensor = fit_rows(tensor, plan.draft.vocab)
        return of_layers(tensor, layout[name].size, kept, plan.source.layers, name).to(layout[name].dtype)

    return layout, pruned_tensor, {**pruned, "vocab_size": plan.draft.vocab, **rope_for_transformers_4(pruned)}


def decoder_layers(model: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """Return name and modules of the decoder's layers: the outermost list of num_hidden_layers blocks.

    Raises:
        UserError: If there is no such list, or more than one.
    """
    count = model.config.num_hidden_layers
    lists = {name: m for name, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m) == count}
    outermost = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    if len(outermost) != 1:
        found = " and ".join(outermost) or "none"
        raise UserError(
            f"{model.config.name_or_path}: model_type {model.config.model_type} has no single list of its "
            f"{count} layers (found: {found}). Set architecture.source to another model with the target's tokenizer."
        )
    return outermost[0], lists[outermost[0]]


def empty_model(config: Mapping[str, Any], where: str) -> PreTrainedModel:
    """Return the model of a config.json without weights, on the meta device."""
    try:
        with TemporaryDirectory() as folder:
            write_json(config, Path(folder) / "config.json")
            parsed = AutoConfig.from_pretrained(folder)
        parsed.name_or_path = where
        _ = MODEL_FOR_CAUSAL_LM_MAPPING[type(parsed)]  # torch cannot be imported on the meta device
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(parsed)
    except (StrictDataclassError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{where}: transformers builds no causal language model with these layers from it ({error}). "
            "Set architecture.source to another model with the target's tokenizer."
        ) from error


def counts_tokens(config: PreTrainedConfig) -> bool:
    """Return True if a layer of the model's cache knows the number of tokens in it: attention layers do."""
    try:
        DynamicCache(config=config).get_seq_length()
    except ValueError:
        return False
    return True


def pruned_entries(config: PreTrainedConfig, stored: Mapping[str, Any], kept: Sequence[int]) -> dict[str, Any]:
    """Return the entries of a config that depend on its layers, for the layers that are kept.

    Args:
        config: Transformers' config, which computes lists that config.json lacks.
        stored: config.json.
    """
    count, entries = config.num_hidden_layers, {**config.to_dict(), **stored}
    depth_key = type(config).attribute_map.get("num_hidden_layers", "num_hidden_layers")
    pruned: dict[str, Any] = {depth_key: len(kept)}
    for key, value in entries.items():
        if key in INDEX_LISTS and isinstance(value, list | tuple):
            pruned[key] = [kept.index(layer) for layer in value if layer in kept]
        elif isinstance(value, list | tuple) and len(value) == count and key not in NOT_PER_LAYER:
            pruned[key] = [value[layer] for layer in kept]
        elif isinstance(value, Mapping) and "layer" in key and all(str(layer).isdigit() for layer in value):
            pruned[key] = {kept.index(int(layer)): each for layer, each in value.items() if int(layer) in kept}
        elif isinstance(value, str) and len(value) == count and key.endswith("pattern"):  # a letter per layer
            pruned[key] = "".join(value[layer] for layer in kept)
        elif key in FIRST_LAYERS and isinstance(value, int):
            pruned[key] = sum(layer < value for layer in kept)
        elif key in LAST_LAYERS and isinstance(value, int):
            pruned[key] = sum(layer >= count - value for layer in kept)
    return pruned


def require_same_layers(whole: PreTrainedModel, draft: PreTrainedModel, kept: Sequence[int], where: str) -> None:
    """Raise UserError if a layer of the draft is another module than the source's layer it is copied from."""
    (_, layers), (_, draft_layers) = decoder_layers(whole), decoder_layers(draft)
    for place, layer in enumerate(kept):
        before, after = settings_of(layers[layer]), settings_of(draft_layers[place])
        for name in {**before, **after}:
            old, new = before.get(name), after.get(name)
            if POSITION.search(name) and isinstance(old, int) and old >= 0:
                old = kept.index(old) if old in kept else None
            if old != new:
                raise UserError(
                    f"{where}: without some layers, transformers builds layer {layer} differently: {name} is {new}, "
                    f"not {before.get(name)}. Keep other layers (architecture.plan), or set architecture.source to "
                    "another model with the target's tokenizer."
                )


def settings_of(layer: nn.Module) -> dict[str, Any]:
    """Return classes, parameter sizes and plain settings of all modules of a layer, by name."""
    found: dict[str, Any] = {}
    for name, module in layer.named_modules():
        found[name] = type(module).__name__
        found |= {f"{name}.{key}": size.shape for key, size in module.named_parameters(recurse=False)}
        plain = {key: value for key, value in vars(module).items() if isinstance(value, int | float | str | tuple)}
        found |= {f"{name}.{key}": value for key, value in plain.items()}
    return found


def numbered_prefix(weights: Weights, list_name: str, count: int) -> str:
    """Return the prefix of the layers' tensors, which files may store under a longer or shorter name."""
    numbers: dict[str, set[int]] = {}
    for name in weights.info:
        if (match := re.match(r"(.*?)\.(\d+)\.", name)) is not None:
            numbers.setdefault(match[1], set()).add(int(match[2]))
    last = list_name.rsplit(".", 1)[-1]
    found = [name for name, each in numbers.items() if name.rsplit(".", 1)[-1] == last and {*range(count)} <= each]
    if len(found) != 1:
        raise UserError(
            f"{weights.folder}: its tensors are not numbered from 0 to {count - 1} below one {last!r}, so that layers "
            "cannot be removed. Save it with the installed transformers, or set architecture.source to another model."
        )
    return found[0]


def renumbered(name: str, prefix: str, kept: Sequence[int]) -> str | None:
    """Return a tensor's name in the draft; None if its layer is removed."""
    if not name.startswith(f"{prefix}."):
        return name
    number, _, rest = name.removeprefix(f"{prefix}.").partition(".")
    if not number.isdigit():
        return name
    return f"{prefix}.{kept.index(int(number))}.{rest}" if int(number) in kept else None


def of_layers(tensor: Tensor, size: tuple[int, ...], kept: Sequence[int], count: int, name: str) -> Tensor:
    """Return a tensor outside the layers; an axis with the same number of entries per layer keeps those of `kept`."""
    for dim, (old, new) in enumerate(zip(tensor.shape, size, strict=True)):
        if old != new:
            if old * len(kept) != new * count:
                raise UserError(f"{name}: cannot be pruned from {old} to {new} entries with the layers. {HINT}")
            tensor = tensor.unflatten(dim, (count, -1)).index_select(dim, torch.tensor(kept)).flatten(dim, dim + 1)
    return tensor


HINT = "Set architecture.source to another model with the target's tokenizer."
