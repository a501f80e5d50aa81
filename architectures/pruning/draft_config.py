"""The draft's config.json: its source's, with every size that changed, and lists with an entry per layer cut along."""

from collections.abc import Mapping
from typing import Any

from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.families.family import Family
from architectures.pruning.plan_record import PruningPlan
from architectures.vocabulary import CONFIG_KEY


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
        draft[family.keys["norm_eps"]] = norm_eps(config, family) * plan.source.hidden / plan.draft.hidden
    draft.setdefault("architectures", [family.architecture])
    draft |= cut_layer_entries(config, plan, family)
    return draft if dtype is None else with_dtype(draft, dtype)


def norm_eps(config: Mapping[str, Any], family: Family) -> float:
    """What norms add to the mean square; it grows with it where channels are removed (see slicing)."""
    return config.get(family.keys["norm_eps"], family.default_norm_eps)


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
