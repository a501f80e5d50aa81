"""Where each Hugging Face family keeps its tensors, and what its config leaves unsaid. Data only, no torch.

A tensor of a layer has a role (`query`, `ffn_up`, ...). A family says under which name a checkpoint stores each
role; `architectures.shapes` says how large it is. To teach the project a family, add one entry to FAMILIES.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from architectures.errors import UserError

BiasRule = bool | str  # True: always there; False: never; text: the config entry that decides

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"
LAYER_PREFIX = "model.layers."

LLAMA_LAYER = {
    "attention_norm": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "attention_output": "self_attn.o_proj",
    "query_norm": "self_attn.q_norm",
    "key_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GGUF_LAYER = {
    "attention_norm": "attn_norm",
    "query": "attn_q",
    "key": "attn_k",
    "value": "attn_v",
    "attention_output": "attn_output",
    "query_norm": "attn_q_norm",
    "key_norm": "attn_k_norm",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "ffn_gate",
    "ffn_up": "ffn_up",
    "ffn_down": "ffn_down",
}


@dataclass(frozen=True)
class ConfigEntry:
    """An entry of config.json, and what transformers takes when it is absent."""

    key: str
    default: int


@dataclass(frozen=True, kw_only=True)
class Family:
    """One `model_type` of transformers."""

    model_type: str
    architecture: str  # the class a config.json names
    layer_names: Mapping[str, str]  # role -> name inside a layer, without .weight or .bias
    qkv_bias: BiasRule = False
    output_bias: BiasRule = False
    ffn_bias: BiasRule = False
    query_key_norm: bool = False
    default_kv_heads: int | None = None  # where config.json has no num_key_value_heads; None: as many as heads
    default_head_dim: int | None = None  # where config.json has no head_dim; None: hidden_size / heads
    ignored_suffixes: tuple[str, ...] = ("self_attn.rotary_emb.inv_freq",)  # buffers old checkpoints stored
    per_layer_lists: tuple[str, ...] = ("layer_types",)  # config entries with one value for each layer
    window_layers: ConfigEntry | None = None  # the first layer that has a sliding window, where there is one

    def biases(self, config: Mapping[str, Any]) -> dict[str, bool]:
        """Which biases a checkpoint with this config has."""
        rules = {"qkv_bias": self.qkv_bias, "output_bias": self.output_bias, "ffn_bias": self.ffn_bias}
        return {name: bool(config.get(rule, False)) if isinstance(rule, str) else rule for name, rule in rules.items()}


FAMILIES = {
    family.model_type: family
    for family in (
        Family(
            model_type="llama",
            architecture="LlamaForCausalLM",
            layer_names=LLAMA_LAYER,
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            ffn_bias="mlp_bias",
        ),
        Family(
            model_type="mistral",
            architecture="MistralForCausalLM",
            layer_names=LLAMA_LAYER,
            default_kv_heads=8,
        ),
        Family(
            model_type="qwen2",
            architecture="Qwen2ForCausalLM",
            layer_names=LLAMA_LAYER,
            qkv_bias=True,
            default_kv_heads=32,
            window_layers=ConfigEntry("max_window_layers", 28),
        ),
        Family(
            model_type="qwen3",
            architecture="Qwen3ForCausalLM",
            layer_names=LLAMA_LAYER,
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            query_key_norm=True,
            default_kv_heads=32,
            default_head_dim=128,
            window_layers=ConfigEntry("max_window_layers", 28),
        ),
    )
}


def family_of(config: Mapping[str, Any], *, where: str = "config.json") -> Family:
    """The family of a config.json.

    Raises:
        UserError: If its model_type is unknown, or the checkpoint is quantised.
    """
    model_type = config.get("model_type")
    if model_type not in FAMILIES:
        raise UserError(
            f"{where}: model_type {model_type!r} is not a known family. Use a target of one of: {', '.join(FAMILIES)}."
        )
    if "quantization_config" in config:
        method = config["quantization_config"].get("quant_method", "unnamed")
        raise UserError(
            f"{where}: the checkpoint is quantised (quant_method {method!r}). Use its unquantised original, "
            "or a GGUF file, which `widedraft import-gguf` de-quantises."
        )
    return FAMILIES[model_type]
