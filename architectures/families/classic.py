"""Families before LLaMA, decoder-only and encoder-decoder.

Source of names and defaults: transformers 5.17 and 5.23 (T5: 5.23), the modeling and configuration module of each
model_type; of tied heads: SGLang 0.5.23, models/gpt2.py and gpt_bigcode.py.

The first block of each T5 stack has the table of relative attention biases that all its blocks use. Here the table is
outside the layers: whichever block becomes the draft's first one, it gets the table of the target's first block.
"""

from collections.abc import Mapping
from dataclasses import replace

from architectures.families.family import (
    LLAMA_KEYS,
    ConfigEntry,
    Encoder,
    Family,
    LayerPart,
    conv1d,
    layer_norm,
    linear,
    rms_norm,
)

NO_WIDTH = "its norms average over all channels, and its config.json has no head_dim"

OPT = Family(
    model_type="opt",
    label="OPT",
    architecture="OPTForCausalLM",
    layer={
        "key": linear("self_attn.k_proj", "query", "hidden", bias=True),
        "value": linear("self_attn.v_proj", "query", "hidden", bias=True),
        "query": linear("self_attn.q_proj", "query", "hidden", bias=True),
        "attention_output": linear("self_attn.out_proj", "hidden", "query", bias=True),
        "attention_norm": layer_norm("self_attn_layer_norm"),
        "ffn_up": linear("fc1", "intermediate", "hidden", bias=True),
        "ffn_down": linear("fc2", "hidden", "intermediate", bias=True),
        "ffn_norm": layer_norm("final_layer_norm"),
    },
    outside={
        "embedding": linear("model.decoder.embed_tokens", "vocab", "hidden"),
        "positions": linear("model.decoder.embed_positions", "positions", "hidden"),
        "final_norm": layer_norm("model.decoder.final_layer_norm"),
        "head": linear("lm_head", "head_rows", "hidden"),
    },
    layer_prefix="model.decoder.layers.",
    base_prefix="model.",
    keys={
        "layers": "num_hidden_layers",
        "hidden": "hidden_size",
        "intermediate": "ffn_dim",
        "heads": "num_attention_heads",
        "vocab": "vocab_size",
        "positions": "max_position_embeddings",
    },
    no_width=NO_WIDTH,
    tied=True,
    extra_positions=2,
    fixed_entries={
        "do_layer_norm_before": True,
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
        "_remove_final_layer_norm": False,
    },
    texts_apart="mask",  # position ids restart, but its mask ignores them
    engines=("vLLM", "SGLang"),
    no_gguf="llama.cpp does not implement this architecture",
)
GPT_NEOX = Family(
    model_type="gpt_neox",
    label="GPT-NeoX",
    architecture="GPTNeoXForCausalLM",
    layer={
        "attention_norm": layer_norm("input_layernorm"),
        "ffn_norm": layer_norm("post_attention_layernorm"),
        "qkv": linear("attention.query_key_value", "query+query+query", "hidden", bias=True),
        "attention_output": linear("attention.dense", "hidden", "query", bias=True),
        "ffn_up": linear("mlp.dense_h_to_4h", "intermediate", "hidden", bias=True),
        "ffn_down": linear("mlp.dense_4h_to_h", "hidden", "intermediate", bias=True),
    },
    outside={
        "embedding": linear("gpt_neox.embed_in", "vocab", "hidden"),
        "final_norm": layer_norm("gpt_neox.final_layer_norm"),
        "head": linear("embed_out", "head_rows", "hidden"),
    },
    layer_prefix="gpt_neox.layers.",
    keys={name: LLAMA_KEYS[name] for name in ("layers", "hidden", "intermediate", "heads", "vocab")},
    no_width=NO_WIDTH,
    ignored_suffixes=("attention.rotary_emb.inv_freq", "attention.bias", "attention.masked_bias"),
    fixed_entries={"attention_bias": True},
    renamed_modules={"lm_head": "embed_out"},
    by_rows=True,
    engines=("llama.cpp",),
)
BLOOM = Family(
    model_type="bloom",
    label="BLOOM",
    architecture="BloomForCausalLM",
    layer={
        "attention_norm": layer_norm("input_layernorm"),
        "qkv": linear("self_attention.query_key_value", "query+query+query", "hidden", bias=True),
        "attention_output": linear("self_attention.dense", "hidden", "query", bias=True),
        "ffn_norm": layer_norm("post_attention_layernorm"),
        "ffn_up": linear("mlp.dense_h_to_4h", "intermediate", "hidden", bias=True),
        "ffn_down": linear("mlp.dense_4h_to_h", "hidden", "intermediate", bias=True),
    },
    outside={
        "embedding": linear("transformer.word_embeddings", "vocab", "hidden"),
        "embedding_norm": layer_norm("transformer.word_embeddings_layernorm"),
        "final_norm": layer_norm("transformer.ln_f"),
        "head": linear("lm_head", "head_rows", "hidden"),
    },
    layer_prefix="transformer.h.",
    base_prefix="transformer.",
    keys={"layers": "n_layer", "hidden": "hidden_size", "heads": "n_head", "vocab": "vocab_size"},
    no_width=NO_WIDTH,
    tied=True,
    texts_apart="mask_and_bias",  # relative attention biases replace position ids, which it does not accept
    context_key=None,
    fixed_entries={"apply_residual_connection_post_layernorm": False},
    engines=("vLLM", "llama.cpp"),
)
GPT2 = Family(
    model_type="gpt2",
    label="GPT-2",
    architecture="GPT2LMHeadModel",
    layer={
        "attention_norm": layer_norm("ln_1"),
        "qkv": conv1d("attn.c_attn", "hidden", "query+query+query"),
        "attention_output": conv1d("attn.c_proj", "query", "hidden"),
        "ffn_norm": layer_norm("ln_2"),
        "ffn_up": conv1d("mlp.c_fc", "hidden", "intermediate"),
        "ffn_down": conv1d("mlp.c_proj", "intermediate", "hidden"),
    },
    outside={
        "embedding": linear("transformer.wte", "vocab", "hidden"),
        "positions": linear("transformer.wpe", "positions", "hidden"),
        "final_norm": layer_norm("transformer.ln_f"),
        "head": linear("lm_head", "head_rows", "hidden"),
    },
    layer_prefix="transformer.h.",
    base_prefix="transformer.",
    keys={
        "layers": "n_layer",
        "hidden": "n_embd",
        "intermediate": "n_inner",
        "heads": "n_head",
        "vocab": "vocab_size",
        "positions": "n_positions",
    },
    no_width=NO_WIDTH,
    tied=True,
    ignored_suffixes=("attn.bias", "attn.masked_bias"),
    context_key="n_positions",
    default_context=1024,
    fixed_entries={"scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    by_rows=True,
    engines=("vLLM", "SGLang", "llama.cpp"),
    head_is_embedding=("SGLang",),
)
GPT_BIGCODE = replace(
    GPT2,
    model_type="gpt_bigcode",
    label="GPT BigCode",
    architecture="GPTBigCodeForCausalLM",
    layer={
        "attention_norm": layer_norm("ln_1"),
        "qkv": linear("attn.c_attn", "query+key_value+key_value", "hidden", bias=True),
        "attention_output": linear("attn.c_proj", "hidden", "query", bias=True),
        "ffn_norm": layer_norm("ln_2"),
        "ffn_up": linear("mlp.c_fc", "intermediate", "hidden", bias=True),
        "ffn_down": linear("mlp.c_proj", "hidden", "intermediate", bias=True),
    },
    default_kv_heads=1,  # one key and one value for all queries
    fixed_entries={"multi_query": True, "add_cross_attention": False},
    engines=("SGLang", "llama.cpp"),
)


def attention(module: str, prefix: str, norm: str) -> dict[str, LayerPart]:
    return {
        f"{prefix}query": linear(f"{module}.q", "query", "hidden"),
        f"{prefix}key": linear(f"{module}.k", "query", "hidden"),
        f"{prefix}value": linear(f"{module}.v", "query", "hidden"),
        f"{prefix}attention_output": linear(f"{module}.o", "hidden", "query"),
        f"{prefix}attention_norm": rms_norm(norm),
    }


def feed_forward(module: str) -> Mapping[str, LayerPart]:
    return {
        "ffn_plain": linear(f"{module}.DenseReluDense.wi", "intermediate", "hidden", when="plain"),
        "ffn_gate": linear(f"{module}.DenseReluDense.wi_0", "intermediate", "hidden", when="gated"),
        "ffn_up": linear(f"{module}.DenseReluDense.wi_1", "intermediate", "hidden", when="gated"),
        "ffn_down": linear(f"{module}.DenseReluDense.wo", "hidden", "intermediate"),
        "ffn_norm": rms_norm(f"{module}.layer_norm"),
    }


def bias_table(stack: str) -> LayerPart:
    return LayerPart(f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias", ("buckets", "heads"))


T5 = Family(
    model_type="t5",
    label="T5",
    architecture="T5ForConditionalGeneration",
    layer={
        **attention("layer.0.SelfAttention", "", "layer.0.layer_norm"),
        **attention("layer.1.EncDecAttention", "cross_", "layer.1.layer_norm"),
        **feed_forward("layer.2"),
    },
    encoder=Encoder(
        layer={
            **attention("layer.0.SelfAttention", "", "layer.0.layer_norm"),
            **feed_forward("layer.1"),
        },
        layer_prefix="encoder.block.",
    ),
    outside={
        "embedding": linear("shared", "vocab", "hidden"),
        "encoder_distances": bias_table("encoder"),
        "encoder_norm": rms_norm("encoder.final_layer_norm"),
        "distances": bias_table("decoder"),
        "final_norm": rms_norm("decoder.final_layer_norm"),
        "head": linear("lm_head", "head_rows", "hidden"),
    },
    layer_prefix="decoder.block.",
    keys={
        "layers": "num_decoder_layers",
        "encoder_layers": "num_layers",
        "hidden": "d_model",
        "intermediate": "d_ff",
        "heads": "num_heads",
        "head_dim": "d_kv",
        "buckets": "relative_attention_num_buckets",
        "vocab": "vocab_size",
    },
    no_width="which heads and channels encoder and decoder both need has not been studied",
    tied=True,
    untied_entry=ConfigEntry("scale_decoder_outputs", default=True),  # records T5 1.1's untied head
    gated_entry=ConfigEntry("feed_forward_proj", default="relu"),
    default_head_dim=64,
    ignored_suffixes=("layer.1.EncDecAttention.relative_attention_bias.weight",),  # unused, in old checkpoints
    copies=("encoder.embed_tokens", "decoder.embed_tokens"),
    context_key=None,
    engines=(),
    no_gguf="only transformers drafts with encoder-decoder models",
    unsupported={
        "merge": "its first block holds the relative positions of all blocks, which merging would change",
        "learned_masks": "masks cover one stack of layers, and it has two",
        "vocabulary": "a reduced head is loaded as a decoder-only model",
        "stages": "stages prune one depth, and it has two",
        "packing": "its encoder attends to the whole row, across packed sequences",
        "text": "its decoder is trained on responses, which plain text does not have",
        "self_written_prompts": "it cannot generate prompts without input",
        "generation engine": "vLLM does not support it, and token id prompts need a decoder-only model",
        "sharded teacher": "sharded models are loaded as decoder-only models",
        "fsdp2": "sharding embeddings that two stacks share is not tested",
        "choose": "shapes have one depth, and it has two",
    },
)
