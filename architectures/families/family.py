"""Family: modules of a checkpoint with their axes, defaults of its config, and engine support. Data only, no torch.

Axes are strings. One name is one axis of the weight as stored: hidden, intermediate, query (heads x head_dim),
key_value (kv_heads x head_dim), head_dim, vocab, head_rows (of the output head), positions, buckets (distances that
share an attention bias), experts, expert_width (neurons of one expert). "a+b" is a fused axis: a's rows, then b's.

Source of names and defaults: transformers 5.17 and 5.23, the modeling and configuration module of each model_type; of
tied heads: vLLM 0.32, models/gemma2.py; SGLang 0.5.23, models/gemma2.py and gemma3_causal.py; llama.cpp,
conversion/gemma.py; of head widths: SGLang 0.5.23, models/olmo2.py; llama.cpp, conversion/granite.py; of engines of
OLMo 3 and later entries: vLLM 0.32, models/exaone4.py, glm4.py, mistral.py and qwen3_moe.py; SGLang 0.5.23,
models/glm4.py, ministral3.py and qwen3_moe.py; llama.cpp, src/models/olmo2.cpp, seed-oss.cpp, glm4.cpp, mistral3.cpp
and qwen3moe.cpp; of GGUF files: src/models/smollm3.cpp, olmo2.cpp and granite.cpp of llama-cpp-python 0.3.36;
llama.cpp, conversion/gemma.py and gemma3 in src/llama-model.cpp.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from architectures.errors import UserError


@dataclass(frozen=True)
class ConfigEntry:
    """Entry of config.json with transformers' default."""

    key: str
    default: Any


BiasRule = bool | str | ConfigEntry  # True: always; False: never; string: the entry that decides, by default false
EMBEDDING_ROLES = ("embedding", "positions", "head")
Feature = Literal[  # recipe features that some families do not support
    "merge",
    "learned_masks",
    "vocabulary",
    "stages",
    "packing",
    "text",
    "self_written_prompts",
    "generation engine",
    "sharded teacher",
    "fsdp2",
    "choose",
]
StoredNames = str | list[list[str]]  # one tensor, or for each part of a parameter those of all experts
ModelEngine = Literal["vLLM", "SGLang", "llama.cpp"]  # engines whose code was read for every family


@dataclass(frozen=True)
class LayerPart:
    """Module of a checkpoint.

    Attributes:
        name: In the checkpoint, relative to its layer, without .weight or .bias.
        bias_axis: Of the bias; None if there is none.
        bias: True if the bias always exists, or the name of the Shape flag that decides.
        when: Name of the Shape flag that decides whether the module exists; empty if it always does.
        stacked: Of a matrix that each expert has, with {} for its index in `name`: the parameter of transformers' layer
            that holds those of all experts [experts, rows, columns]; parts of one parameter follow each other in rows.
    """

    name: str
    axes: tuple[str, ...]
    bias_axis: str | None = None
    bias: bool | str = True
    when: str = ""
    stacked: str = ""

    def names(self, experts: int) -> list[str]:
        """Return the name of each of its tensors."""
        return [self.name.format(expert) for expert in range(experts)] if self.stacked else [self.name]


def linear(name: str, rows: str, columns: str, *, bias: bool | str = False, when: str = "") -> LayerPart:
    """Return a torch Linear, stored [output, input]."""
    return LayerPart(name, (rows, columns), rows if bias else None, bias, when)


def conv1d(name: str, rows: str, columns: str) -> LayerPart:
    """Return GPT-2's linear layer, stored [input, output], with a bias."""
    return LayerPart(name, (rows, columns), columns)


def of_experts(name: str, rows: str, columns: str, *, stacked: str) -> LayerPart:
    """Return the linears of all experts below mlp.experts."""
    return LayerPart(f"mlp.experts.{{}}.{name}", ("experts", rows, columns), stacked=f"mlp.experts.{stacked}")


def rms_norm(name: str, axis: str = "hidden") -> LayerPart:
    """Return a norm with only a weight."""
    return LayerPart(name, (axis,))


def layer_norm(name: str) -> LayerPart:
    """Return a norm with a weight and a bias."""
    return LayerPart(name, ("hidden",), "hidden")


@dataclass(frozen=True)
class Encoder:
    """Blocks that read the prompt in an encoder-decoder model."""

    layer: Mapping[str, LayerPart]
    layer_prefix: str


@dataclass(frozen=True, kw_only=True)
class Gguf:
    """Architecture of a family in llama.cpp, and the requirements of its loader.

    Attributes:
        name: `general.architecture`; such files are imported as the first family of this name.
        bias_tensors: Config entry -> a tensor that exists if the entry is true.
        scales: Config entry -> entry below the architecture's name, for numbers the model multiplies or divides by.
        counts: Config entry -> entry below the architecture's name, for integers.
        implied: Config entries whose values llama.cpp takes for granted.
        own_row_order: Query and key rows are stored in llama.cpp's rotary order, in adjacent pairs.
        query_is_hidden: The query width must equal the hidden width.
        attention_bias: The attention supports biases.
        ffn_bias: The feed-forward supports biases.
        tied_head: The output head may be omitted if it is the embedding.
        rope_factors: The layers read Llama 3's divisors of rotary frequencies.
        rope_period: Every n-th layer has no rotary positions, without an entry; None if all have them.
        hidden_scale_layers: Depth at which queries are scaled by hidden / heads instead of head_dim; 0 for none.
    """

    name: str
    bias_tensors: Mapping[str, str] = field(default_factory=dict)
    scales: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, str] = field(default_factory=dict)
    implied: Mapping[str, Any] = field(default_factory=dict)
    own_row_order: bool = False
    query_is_hidden: bool = False
    attention_bias: bool = True
    ffn_bias: bool = True
    tied_head: bool = True
    rope_factors: bool = False
    rope_period: int | None = None
    hidden_scale_layers: int = 0

    def rotary_layers(self, layers: int) -> list[int] | None:
        """Return 1 per layer if llama.cpp gives it rotary positions, else 0; None if all have them."""
        return None if self.rope_period is None else all_but_each(self.rope_period, layers)


def all_but_each(period: int, layers: int) -> list[int]:
    """Return 1 per layer, but 0 for every period-th."""
    return [int((layer + 1) % period != 0) for layer in range(layers)]


LLAMA_KEYS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab": "vocab_size",
    "norm_eps": "rms_norm_eps",
}


@dataclass(frozen=True, kw_only=True)
class Family:
    """One `model_type` of transformers.

    Attributes:
        outside: Role -> module outside the layers; checkpoints with tied embeddings omit `head`.
        base_prefix: Prefix that some checkpoints omit from every name but the head's; empty if none do.
        keys: Size -> entry of config.json.
        window_layers: Entry with the first layer that has a sliding window.
        window_pattern: Entry n: every n-th layer has no window, unless layer_types is set.
        rope_pattern: Entry n: every n-th layer has no rotary positions, unless no_rope_layers is set.
        fixed_entries: Config entries that must have this value or be absent: any other value is another model.
        renamed_modules: Name in transformers' module -> name in a checkpoint, if they differ.
        texts_apart: Separation of packed sequences. positions: transformers masks earlier sequences wherever positions
            restart at 0. mask: it needs a mask. mask_and_bias: it needs a mask and the distances of its attention
            bias.
        context_key: Entry with the context length; None if positions are unlimited.
        default_context: Value if config.json has no such entry.
        scaled_context: The entry is the length after rotary scaling, for any scaling type.
        by_rows: The model follows given positions and masks, so a batch may contain sequences of different lengths,
            each rolled back separately; otherwise rows only ever advance together.
        mask_per_kind: If given masks, the model needs one per layer type.
        no_width: Why heads, neurons and channels cannot be pruned; empty if they can.
        engines: Engines with a model class of this family.
        heads_share_hidden: Those of them that compute the head width as hidden / heads, whatever the config.
        head_is_embedding: Those of them that always tie the head: lm_head.weight is ignored.
        gguf: Architecture in GGUF files; None if not supported.
        no_gguf: Why export is not supported; empty if it is.
        encoder: Of an encoder-decoder model, whose decoder is `layer`; None for decoder-only models.
        untied_entry: Entry that is false if the head is not the embedding, whatever tie_word_embeddings is.
        gated_entry: Entry that begins with "gated" if the feed-forward has a gate.
        copies: Other names of the embedding; a checkpoint may contain them, and drafts never do.
        unsupported: Unsupported recipe features, with the reason.
    """

    model_type: str
    label: str  # spelling of its authors
    architecture: str  # class in config.json
    layer: Mapping[str, LayerPart]
    outside: Mapping[str, LayerPart]
    layer_prefix: str = "model.layers."
    base_prefix: str = ""
    keys: Mapping[str, str] = field(default_factory=lambda: LLAMA_KEYS)
    no_width: str = ""
    qkv_bias: BiasRule = False
    output_bias: BiasRule = False
    ffn_bias: BiasRule = False
    tied: bool = False  # if config.json has no tie_word_embeddings
    default_kv_heads: int | None = None  # if config.json has none; None: the number of heads
    default_head_dim: int | None = None  # if config.json has none; None: hidden / heads
    extra_positions: int = 0  # rows of the position table in addition to those of the config
    default_norm_eps: float = 1e-6  # if config.json has none
    norm_offset: float = 0.0  # a norm multiplies by weight + this
    scaled_embedding: bool = False  # embeddings are multiplied by sqrt(hidden) in the forward pass
    ignored_suffixes: tuple[str, ...] = ("self_attn.rotary_emb.inv_freq",)  # buffers in old checkpoints
    per_layer_lists: tuple[str, ...] = ("layer_types",)  # config entries with one value per layer
    window_layers: ConfigEntry | None = None
    window_pattern: ConfigEntry | None = None
    rope_pattern: ConfigEntry | None = None
    fixed_entries: Mapping[str, Any] = field(default_factory=dict)
    renamed_modules: Mapping[str, str] = field(default_factory=dict)
    texts_apart: Literal["positions", "mask", "mask_and_bias"] = "positions"
    context_key: str | None = "max_position_embeddings"
    default_context: int = 2048
    scaled_context: bool = False
    by_rows: bool = False
    mask_per_kind: bool = False
    engines: tuple[ModelEngine, ...]
    heads_share_hidden: tuple[ModelEngine, ...] = ()
    head_is_embedding: tuple[ModelEngine, ...] = ()
    gguf: Gguf | None = None
    no_gguf: str = ""
    encoder: Encoder | None = None
    untied_entry: ConfigEntry | None = None
    gated_entry: ConfigEntry | None = None
    copies: tuple[str, ...] = ()
    unsupported: Mapping[Feature, str] = field(default_factory=dict)

    @property
    def width(self) -> bool:
        return not self.no_width

    @property
    def norms_over_heads(self) -> bool:
        """True if queries and keys are normalised over all heads together, so that no head is independent."""
        return "query_norm" in self.layer and self.layer["query_norm"].axes == ("query",)

    def rotary_layers(self, config: Mapping[str, Any], layers: int) -> list[int] | None:
        """Return 1 per layer if it has rotary positions by its config, else 0; None if all have them."""
        if self.rope_pattern is None or config.get("no_rope_layers") is not None:
            return config.get("no_rope_layers")
        return all_but_each(config.get(self.rope_pattern.key, self.rope_pattern.default), layers)

    def biases(self, config: Mapping[str, Any]) -> dict[str, bool]:
        def is_set(rule: BiasRule) -> bool:
            entry = ConfigEntry(rule, default=False) if isinstance(rule, str) else rule
            return entry if isinstance(entry, bool) else bool(config.get(entry.key, entry.default))

        return {name: is_set(getattr(self, name)) for name in ("qkv_bias", "output_bias", "ffn_bias")}

    @property
    def stored_copies(self) -> tuple[str, ...]:
        return tuple(f"{module}.weight" for module in self.copies)

    def reject(self, feature: Feature, key: str) -> None:
        """Raise UserError if this family does not support a feature; `key` is the recipe key or command."""
        if feature in self.unsupported:
            raise UserError(
                f"{key}: not supported for model_type {self.model_type}: {self.unsupported[feature]}. "
                "Remove it, or use another target."
            )

    def is_tied(self, config: Mapping[str, Any]) -> bool:
        entry = self.untied_entry
        untied = entry is not None and not config.get(entry.key, entry.default)
        return not untied and bool(config.get("tie_word_embeddings", self.tied))

    def is_gated(self, config: Mapping[str, Any]) -> bool:
        """Return True if the config sets a gated feed-forward, for families that may or may not have one."""
        entry = self.gated_entry
        return entry is not None and str(config.get(entry.key, entry.default)).startswith("gated")

    def stored_name(self, parameter: str) -> str:
        """Return the name in a checkpoint of a parameter of transformers' model that does not stack experts."""
        module, _, kind = parameter.rpartition(".")
        return f"{self.renamed_modules.get(module, module)}.{kind}"

    def stored_names(self, parameter: str, experts: int) -> StoredNames:
        """Return the names in a checkpoint of any parameter of transformers' model, with that number of experts."""
        parts = [part for part in self.layer.values() if part.stacked and parameter.endswith(f".{part.stacked}")]
        if not parts:
            return self.stored_name(parameter)
        layer = parameter.removesuffix(parts[0].stacked)
        return [[f"{layer}{name}.weight" for name in part.names(experts)] for part in parts]

    def weight(self, role: str) -> str:
        return f"{self.outside[role].name}.weight"

    def layer_module(self, layer: int, role: str) -> str:
        return f"{self.layer_prefix}{layer}.{self.layer[role].name}"


OUTSIDE = {
    "embedding": linear("model.embed_tokens", "vocab", "hidden"),
    "final_norm": rms_norm("model.norm"),
    "head": linear("lm_head", "head_rows", "hidden"),
}
QUERY_KEY_NORMS = {
    "query_norm": rms_norm("self_attn.q_norm", "head_dim"),
    "key_norm": rms_norm("self_attn.k_norm", "head_dim"),
}
LLAMA_LAYER = {
    "query": linear("self_attn.q_proj", "query", "hidden", bias="qkv_bias"),
    "key": linear("self_attn.k_proj", "key_value", "hidden", bias="qkv_bias"),
    "value": linear("self_attn.v_proj", "key_value", "hidden", bias="qkv_bias"),
    "attention_output": linear("self_attn.o_proj", "hidden", "query", bias="output_bias"),
    "ffn_gate": linear("mlp.gate_proj", "intermediate", "hidden", bias="ffn_bias"),
    "ffn_up": linear("mlp.up_proj", "intermediate", "hidden", bias="ffn_bias"),
    "ffn_down": linear("mlp.down_proj", "hidden", "intermediate", bias="ffn_bias"),
    "attention_norm": rms_norm("input_layernorm"),
    "ffn_norm": rms_norm("post_attention_layernorm"),
}
GEMMA_LAYER = {
    **LLAMA_LAYER,
    "attention_post_norm": rms_norm("post_attention_layernorm"),
    "ffn_norm": rms_norm("pre_feedforward_layernorm"),
    "ffn_post_norm": rms_norm("post_feedforward_layernorm"),
}
QWEN3_MOE_LAYER = {
    **LLAMA_LAYER,
    **QUERY_KEY_NORMS,
    "router": linear("mlp.gate", "experts", "hidden"),
    "ffn_gate": of_experts("gate_proj", "expert_width", "hidden", stacked="gate_up_proj"),
    "ffn_up": of_experts("up_proj", "expert_width", "hidden", stacked="gate_up_proj"),
    "ffn_down": of_experts("down_proj", "hidden", "expert_width", stacked="down_proj"),
}
OLMO2_LAYER = {  # no norm before attention and feed-forward
    **{role: part for role, part in LLAMA_LAYER.items() if role not in ("attention_norm", "ffn_norm")},
    "query_norm": rms_norm("self_attn.q_norm", "query"),
    "key_norm": rms_norm("self_attn.k_norm", "key_value"),
    "attention_post_norm": rms_norm("post_attention_layernorm"),
    "ffn_post_norm": rms_norm("post_feedforward_layernorm"),
}
PHI3_LAYER = {
    "qkv": linear("self_attn.qkv_proj", "query+key_value+key_value", "hidden"),
    "attention_output": linear("self_attn.o_proj", "hidden", "query"),
    "ffn_gate_up": linear("mlp.gate_up_proj", "intermediate+intermediate", "hidden"),
    "ffn_down": linear("mlp.down_proj", "hidden", "intermediate"),
    "attention_norm": rms_norm("input_layernorm"),
    "ffn_norm": rms_norm("post_attention_layernorm"),
}

GLM4_LAYER = {
    **{role: part for role, part in LLAMA_LAYER.items() if role not in ("ffn_gate", "ffn_up")},
    "ffn_gate_up": PHI3_LAYER["ffn_gate_up"],
    "attention_post_norm": rms_norm("post_self_attn_layernorm"),
    "ffn_post_norm": rms_norm("post_mlp_layernorm"),
}

ATTENTION_BIAS = {"attention_bias": "blk.0.attn_q.bias"}

LLAMA = Family(
    model_type="llama",
    label="LLaMA",
    architecture="LlamaForCausalLM",
    layer=LLAMA_LAYER,
    outside=OUTSIDE,
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    ffn_bias="mlp_bias",
    by_rows=True,
    engines=("vLLM", "SGLang", "llama.cpp"),
    gguf=Gguf(
        name="llama",
        bias_tensors={**ATTENTION_BIAS, "mlp_bias": "blk.0.ffn_up.bias"},
        own_row_order=True,
        rope_factors=True,
    ),
)
MISTRAL = Family(
    model_type="mistral",
    label="Mistral",
    architecture="MistralForCausalLM",
    layer=LLAMA_LAYER,
    outside=OUTSIDE,
    default_kv_heads=8,
    default_context=131072,
    by_rows=True,
    engines=("vLLM", "SGLang", "llama.cpp"),
    gguf=Gguf(name="llama", own_row_order=True, rope_factors=True),
)
QWEN2 = Family(
    model_type="qwen2",
    label="Qwen2",
    architecture="Qwen2ForCausalLM",
    layer=LLAMA_LAYER,
    outside=OUTSIDE,
    qkv_bias=True,
    default_kv_heads=32,
    window_layers=ConfigEntry("max_window_layers", 28),
    default_context=32768,
    by_rows=True,
    mask_per_kind=True,
    engines=("vLLM", "SGLang", "llama.cpp"),
    gguf=Gguf(name="qwen2", query_is_hidden=True),
)
QWEN3 = Family(
    model_type="qwen3",
    label="Qwen3",
    architecture="Qwen3ForCausalLM",
    layer={**LLAMA_LAYER, **QUERY_KEY_NORMS},
    outside=OUTSIDE,
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    default_kv_heads=32,
    default_head_dim=128,
    window_layers=ConfigEntry("max_window_layers", 28),
    default_context=32768,
    by_rows=True,
    mask_per_kind=True,
    engines=("vLLM", "SGLang", "llama.cpp"),
    gguf=Gguf(name="qwen3", bias_tensors=ATTENTION_BIAS, attention_bias=False),
)
GEMMA2 = Family(
    model_type="gemma2",
    label="Gemma 2",
    architecture="Gemma2ForCausalLM",
    layer=GEMMA_LAYER,
    outside=OUTSIDE,
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    tied=True,
    default_kv_heads=4,
    default_head_dim=256,
    norm_offset=1.0,
    scaled_embedding=True,
    window_pattern=ConfigEntry("sliding_window_pattern", 2),
    default_context=8192,
    by_rows=True,
    mask_per_kind=True,
    engines=("vLLM", "SGLang", "llama.cpp"),
    head_is_embedding=("vLLM", "SGLang", "llama.cpp"),
    no_gguf="the scores of its word pieces are only in tokenizer.model, which is not read",
)
GEMMA3 = replace(
    GEMMA2,
    model_type="gemma3_text",
    label="Gemma 3",
    architecture="Gemma3ForCausalLM",
    layer={**GEMMA_LAYER, **QUERY_KEY_NORMS},
    window_pattern=ConfigEntry("sliding_window_pattern", 6),
    default_context=131072,
    scaled_context=True,
    head_is_embedding=("SGLang", "llama.cpp"),
    gguf=Gguf(name="gemma3", hidden_scale_layers=62),
)
PHI3 = Family(
    model_type="phi3",
    label="Phi-3",
    architecture="Phi3ForCausalLM",
    layer=PHI3_LAYER,
    outside=OUTSIDE,
    default_norm_eps=1e-5,
    default_context=4096,
    by_rows=True,
    engines=("vLLM", "SGLang", "llama.cpp"),
)

SMOLLM3 = Family(
    model_type="smollm3",
    label="SmolLM3",
    architecture="SmolLM3ForCausalLM",
    layer=LLAMA_LAYER,
    outside=OUTSIDE,
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    ffn_bias="mlp_bias",
    tied=True,
    default_kv_heads=4,
    per_layer_lists=("layer_types", "no_rope_layers"),
    rope_pattern=ConfigEntry("no_rope_layer_interval", 4),
    default_context=32768,
    by_rows=True,
    mask_per_kind=True,
    engines=("llama.cpp",),
    gguf=Gguf(name="smollm3", own_row_order=True, attention_bias=False, ffn_bias=False, rope_period=4),
)
OLMO2 = Family(
    model_type="olmo2",
    label="OLMo 2",
    architecture="Olmo2ForCausalLM",
    layer=OLMO2_LAYER,
    outside=OUTSIDE,
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    default_norm_eps=1e-5,
    by_rows=True,
    engines=("SGLang", "llama.cpp"),
    heads_share_hidden=("SGLang", "llama.cpp"),
    gguf=Gguf(name="olmo2", query_is_hidden=True, attention_bias=False, tied_head=False),
)
GRANITE = Family(
    model_type="granite",
    label="Granite",
    architecture="GraniteForCausalLM",
    layer=LLAMA_LAYER,
    outside=OUTSIDE,
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    ffn_bias="mlp_bias",
    by_rows=True,
    engines=("vLLM", "SGLang", "llama.cpp"),
    heads_share_hidden=("llama.cpp",),
    gguf=Gguf(
        name="granite",
        bias_tensors={**ATTENTION_BIAS, "mlp_bias": "blk.0.ffn_up.bias"},
        scales={
            "embedding_multiplier": "embedding_scale",
            "attention_multiplier": "attention.scale",
            "residual_multiplier": "residual_scale",
            "logits_scaling": "logit_scale",
        },
        own_row_order=True,
        rope_factors=True,
    ),
)
OLMO3 = replace(
    OLMO2,
    model_type="olmo3",
    label="OLMo 3",
    architecture="Olmo3ForCausalLM",
    window_pattern=ConfigEntry("sliding_window_pattern", 4),
    mask_per_kind=True,
    engines=("llama.cpp",),
    heads_share_hidden=("llama.cpp",),
    gguf=None,
)
# With a window, the other layers have no rotary positions: both follow from layer_types. SGLang and llama.cpp compute
# them from the layer's number or the depth instead, which pruning changes.
EXAONE4 = Family(
    model_type="exaone4",
    label="EXAONE 4.0",
    architecture="Exaone4ForCausalLM",
    layer={**OLMO2_LAYER, **QUERY_KEY_NORMS},
    outside=OUTSIDE,
    default_kv_heads=32,
    default_norm_eps=1e-5,
    window_pattern=ConfigEntry("sliding_window_pattern", 4),
    by_rows=True,
    mask_per_kind=True,
    engines=("vLLM",),
)
SEED_OSS = Family(
    model_type="seed_oss",
    label="Seed-OSS",
    architecture="SeedOssForCausalLM",
    layer=LLAMA_LAYER,
    outside=OUTSIDE,
    qkv_bias=ConfigEntry("attention_bias", default=True),
    output_bias="attention_out_bias",
    ffn_bias="mlp_bias",
    default_kv_heads=8,
    default_head_dim=128,
    default_context=524288,
    by_rows=True,
    engines=("llama.cpp",),
)
GLM4 = Family(
    model_type="glm4",
    label="GLM-4",
    architecture="Glm4ForCausalLM",
    layer=GLM4_LAYER,
    outside=OUTSIDE,
    qkv_bias=ConfigEntry("attention_bias", default=True),
    default_kv_heads=2,
    default_head_dim=128,
    default_norm_eps=1.5625e-7,
    default_context=131072,
    by_rows=True,
    engines=("vLLM", "SGLang", "llama.cpp"),
)
MINISTRAL3 = Family(
    model_type="ministral3",
    label="Ministral 3",
    architecture="Ministral3ForCausalLM",
    layer=LLAMA_LAYER,
    outside=OUTSIDE,
    default_kv_heads=8,
    default_head_dim=128,
    default_norm_eps=1e-5,
    default_context=262144,
    by_rows=True,
    engines=("vLLM", "SGLang", "llama.cpp"),
)
QWEN3_MOE = Family(
    model_type="qwen3_moe",
    label="Qwen3 MoE",
    architecture="Qwen3MoeForCausalLM",
    layer=QWEN3_MOE_LAYER,
    outside=OUTSIDE,
    keys={
        **LLAMA_KEYS,
        "intermediate": "moe_intermediate_size",
        "experts": "num_experts",
        "active_experts": "num_experts_per_tok",
    },
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    default_kv_heads=4,
    fixed_entries={"mlp_only_layers": [], "decoder_sparse_step": 1},
    default_context=32768,
    engines=("vLLM", "SGLang", "llama.cpp"),
    gguf=Gguf(
        name="qwen3moe",
        counts={
            "num_experts": "expert_count",
            "num_experts_per_tok": "expert_used_count",
            "moe_intermediate_size": "expert_feed_forward_length",
        },
        implied={"norm_topk_prob": True},
    ),
    no_gguf="its experts would have to be stacked",
    unsupported={"learned_masks": "masks are not defined for experts"},
)
