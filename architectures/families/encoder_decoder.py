"""Families with an encoder that reads the prompt and a decoder that answers. Blocks of both can be cut, widths cannot.

Source of names and defaults: transformers 5.23, the modeling and configuration module of the model_type.

The first block of each stack holds the table of attention biases by distance that all its blocks use. It stands outside
the layers here: whichever block of the target becomes a draft's first one, the table is the target's first block's.
"""

from collections.abc import Mapping

from architectures.families.family import ConfigEntry, Encoder, Family, Part, linear, rms_norm


def attention(module: str, prefix: str, norm: str) -> dict[str, Part]:
    """The parts of an attention and the norm before it."""
    return {
        f"{prefix}query": linear(f"{module}.q", "query", "hidden"),
        f"{prefix}key": linear(f"{module}.k", "query", "hidden"),
        f"{prefix}value": linear(f"{module}.v", "query", "hidden"),
        f"{prefix}attention_output": linear(f"{module}.o", "hidden", "query"),
        f"{prefix}attention_norm": rms_norm(norm),
    }


def feed_forward(module: str) -> Mapping[str, Part]:
    """The parts of a feed-forward and the norm before it; with a gate two matrices stand in the place of one."""
    return {
        "ffn_plain": linear(f"{module}.DenseReluDense.wi", "intermediate", "hidden", when="plain"),
        "ffn_gate": linear(f"{module}.DenseReluDense.wi_0", "intermediate", "hidden", when="gated"),
        "ffn_up": linear(f"{module}.DenseReluDense.wi_1", "intermediate", "hidden", when="gated"),
        "ffn_down": linear(f"{module}.DenseReluDense.wo", "hidden", "intermediate"),
        "ffn_norm": rms_norm(f"{module}.layer_norm"),
    }


def bias_table(stack: str) -> Part:
    """Attention biases by distance, one for each head."""
    return Part(f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias", ("buckets", "heads"))


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
    no_width="the decoder reads what the encoder wrote, and nobody has looked into which heads and channels both need",
    tied=True,
    untied_entry=ConfigEntry("scale_decoder_outputs", default=True),  # all that transformers 5 saves of T5 1.1's head
    gated_entry=ConfigEntry("feed_forward_proj", default="relu"),
    default_head_dim=64,
    ignored_suffixes=("layer.1.EncDecAttention.relative_attention_bias.weight",),  # of old checkpoints, read by nothing
    copies=("encoder.embed_tokens", "decoder.embed_tokens"),
    context_key=None,
    engines=(),
    no_gguf="no engine here drafts with an encoder-decoder model but transformers",
    refused={
        "merge": "the distances of all its blocks are kept by the first, which no merged block could hand on",
        "learned_masks": "masks are over one stack of layers, and it has two",
        "vocabulary": "a head of few ids is opened as a decoder-only model",
        "stages": "one depth is cut stage by stage, and it has two",
        "packing": "its encoder sees all of a row, and would read the texts of a row as one",
        "text": "it answers what its encoder reads, and plain text has no answers",
        "self_written_prompts": "it answers prompts, and writes none from nothing",
        "answer engine": "vLLM has no such model, and prompts of token ids are continued by a decoder alone",
        "sharded teacher": "what is sharded is opened as a decoder-only model",
        "fsdp2": "embeddings that two stacks share have not been tried sharded",
        "choose": "shapes are chosen by one depth, and it has two",
    },
)
