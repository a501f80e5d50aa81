"""Table of the supported Hugging Face families: checkpoint tensors and config defaults. Data only, no torch.

A module has a role (`query`, `ffn_up`, ...). A family maps it to a checkpoint name and axes; `architectures.shapes`
computes their lengths. To support a family, add it to family.py or classic.py: batching, engine support and GGUF
export are fields of it too, and no other file names a family.
"""

from collections.abc import Mapping
from typing import Any

from architectures.errors import UserError
from architectures.families import classic, family
from architectures.families.family import Family

FAMILIES: dict[str, Family] = {
    each.model_type: each for module in (family, classic) for each in vars(module).values() if isinstance(each, Family)
}

# model_type of a text model inside a multimodal one -> the one that it equals for text prompts
SAME_FOR_TEXT = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}


def quantised(config: Mapping[str, Any], where: str) -> UserError:
    """Return the error for a quantised checkpoint that cannot be read."""
    method = config["quantization_config"].get("quant_method", "unnamed")
    return UserError(
        f"{where}: the checkpoint is quantised (quant_method {method!r}). Use its unquantised original, or a GGUF file "
        "(`widedraft import`); `widedraft eval --endpoint URL` scores a draft on the responses of its server."
    )


def family_of(config: Mapping[str, Any], *, where: str = "config.json") -> Family:
    """Return the family of a config.json.

    Raises:
        UserError: If its model_type is unknown, it is quantised, or an entry makes it an unsupported variant.
    """
    model_type = config.get("model_type")
    if config.get("quantization_config") is not None:
        raise quantised(config, where)
    if model_type not in FAMILIES:
        raise UserError(
            f"{where}: model_type {model_type!r} is not supported, and remote code (trust_remote_code) is never "
            f"run. Drafts are pruned from one of: {', '.join(FAMILIES)}; set architecture.source to such a model "
            "with the target's tokenizer."
        )
    family = FAMILIES[model_type]
    for key, value in family.fixed_entries.items():
        if config.get(key, value) != value:
            raise UserError(
                f"{where}: {key} is {config[key]!r}; {model_type} checkpoints can be pruned only with {value!r}. "
                "Use another target."
            )
    return family
