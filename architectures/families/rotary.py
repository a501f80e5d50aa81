"""LLaMA-like families: rotary positions, RMS norms, gated feed-forward. Depth and width can be pruned.

Source of names and defaults: transformers 5.17 and 5.23, the modeling and configuration module of each model_type; of
tied heads: vLLM 0.32, models/gemma2.py; SGLang 0.5.23, models/gemma2.py and gemma3_causal.py; llama.cpp,
conversion/gemma.py; of head widths: SGLang 0.5.23, models/olmo2.py; llama.cpp, conversion/granite.py; of GGUF files:
src/models/smollm3.cpp, olmo2.cpp and granite.cpp of llama-cpp-python 0.3.36.
"""

from dataclasses import replace

from architectures.families.family import ConfigEntry, Family, Gguf, linear, rms_norm

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
    no_gguf="its word pieces have scores that only its tokenizer.model holds, which is not read",
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
