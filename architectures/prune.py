"""A PruningPlan and a target's weights become a draft folder, tensor by tensor.

Everything the plan does not change is carried over: bits of the weights, config entries, tokenizer files.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from architectures.atomic import staged_folder, write_json, write_text
from architectures.errors import UserError
from architectures.families import EMBEDDING, HEAD, LAYER_PREFIX, Family, family_of
from architectures.plan import PLAN_NAME, PruningPlan
from architectures.shapes import Shape, checkpoint_tensors
from architectures.target import read_config
from architectures.weights import TensorInfo, Weights, open_weights, require_replaceable, require_tensors, write_weights

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")  # any of them makes a tokenizer
CARRIED_FILES = (
    *TOKENIZER_FILES,
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates",
    "generation_config.json",
)


def prune_checkpoint(
    target: Path,
    plan: PruningPlan,
    out: Path,
    *,
    dtype: str | None = None,
    finish: Callable[[Path], None] | None = None,
) -> None:
    """Write the draft that plan cuts from target: weights, config.json, tokenizer, generation_config.json, plan.json.

    The folder appears whole or not at all. Tied embeddings stay tied, and no second copy of them is written.

    Args:
        target: A Hugging Face folder with safetensors.
        plan: Made for this target's shape.
        out: The draft folder; an earlier draft there is replaced.
        dtype: float32, bfloat16 or float16 for every weight; None keeps each tensor's own.
        finish: Called with the folder before it takes its place; may add files.

    Raises:
        UserError: If the target is incomplete or of an unknown family, or out holds something else.
        ValueError: If plan was made for another shape.
    """
    config = read_config(target)
    family = family_of(config, where=str(target / "config.json"))
    source = Shape.from_config(config, where=str(target / "config.json"))
    if source != plan.source:
        raise ValueError(f"the plan was made for {plan.source}, {target} is {source}.")
    weights = open_weights(target)
    require_whole_target(weights, source, family)
    require_tokenizer(target)
    require_replaceable(out, PLAN_NAME, reading=target)

    sources = {name: source_tensor(name, plan) for name in checkpoint_tensors(plan.draft, family)}
    cast = None if dtype is None else getattr(torch, dtype)
    layout = {name: draft_info(weights.info[sources[name]], cast) for name in sources}
    with staged_folder(out) as folder:
        write_weights(layout, lambda name: weights.read(sources[name]).to(layout[name].dtype), folder)
        write_json(draft_config(config, plan, family, dtype), folder / "config.json")
        write_text(plan.to_json(), folder / PLAN_NAME)
        carry_files(target, folder)
        if finish is not None:
            finish(folder)


def require_whole_target(weights: Weights, source: Shape, family: Family) -> None:
    """The target holds exactly the tensors its config promises; a stored copy of a tied head must be a copy."""
    expected = checkpoint_tensors(source, family)
    stores_tied_head = source.tied and HEAD in weights.info
    if stores_tied_head:
        expected[HEAD] = (source.vocab, source.hidden)
    require_tensors(weights, expected, ignored=family.ignored_suffixes)
    if stores_tied_head and not torch.equal(weights.read(HEAD), weights.read(EMBEDDING)):
        raise UserError(
            f"{weights.files[HEAD]}: {HEAD} differs from {EMBEDDING}, but config.json says tie_word_embeddings true. "
            "Set it to false if the head has weights of its own, else remove the head."
        )


def require_tokenizer(target: Path) -> None:
    """A draft shares its target's tokenizer, so there must be one."""
    if not any((target / name).is_file() for name in TOKENIZER_FILES):
        raise UserError(
            f"{target}: holds no tokenizer ({', '.join(TOKENIZER_FILES)}). Save the target's tokenizer there."
        )


def source_tensor(name: str, plan: PruningPlan) -> str:
    """The target's tensor that becomes the draft's tensor of this name."""
    if not name.startswith(LAYER_PREFIX):
        return name
    layer, rest = name.removeprefix(LAYER_PREFIX).split(".", 1)
    return f"{LAYER_PREFIX}{plan.source_layers[int(layer)]}.{rest}"


def draft_info(info: TensorInfo, cast: torch.dtype | None) -> TensorInfo:
    """What the draft stores for a tensor of the target."""
    return info if cast is None else TensorInfo(cast, info.size)


def draft_config(config: Mapping[str, Any], plan: PruningPlan, family: Family, dtype: str | None) -> dict[str, Any]:
    """The target's config with the cut applied and every size an engine might guess written out."""
    shape = plan.draft
    draft = {key: value for key, value in config.items() if key != "_name_or_path"} | {
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "tie_word_embeddings": shape.tied,
    }
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
    if family.window_layers is not None:
        first_window = config.get(family.window_layers.key, family.window_layers.default)
        cut[family.window_layers.key] = sum(layer < first_window for layer in plan.source_layers)
    return cut


def carry_files(target: Path, folder: Path) -> None:
    """Copy tokenizer, chat template and generation settings, byte for byte."""
    for name in CARRIED_FILES:
        if (target / name).is_dir():
            shutil.copytree(target / name, folder / name)
        elif (target / name).is_file():
            shutil.copyfile(target / name, folder / name)
