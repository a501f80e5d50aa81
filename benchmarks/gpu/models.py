"""Models of random weights: how long a step takes depends on a model's shape, not on its weights."""

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from architectures.hub import LLAMA_2_7B
from architectures.shapes import Shape

LLAMA_7B = Shape.from_config(LLAMA_2_7B)


def llama_config(shape: Shape, *, max_position_embeddings: int = 8192) -> LlamaConfig:
    """The config of a LLaMA of this shape."""
    return LlamaConfig(
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=max_position_embeddings,
        architectures=["LlamaForCausalLM"],
    )


def random_model(shape: Shape, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """A LLaMA of this shape in eval mode, its weights drawn on the device itself, where a 7B model takes seconds."""
    with device:
        return AutoModelForCausalLM.from_config(llama_config(shape), dtype=dtype, trust_remote_code=False).eval()
