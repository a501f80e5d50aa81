"""The config.json of published targets, as far as a Shape needs it: what `widedraft check` knows without a network.

Most of these repositories are gated, so their config.json cannot even be looked at before a licence is accepted. A copy
in the hub's cache always comes first.

Sources: the models' reports ("LLaMA", arXiv 2302.13971; "Llama 2", arXiv 2307.09288; "The Llama 3 Herd of Models",
arXiv 2407.21783; "Mistral 7B", arXiv 2310.06825; "Qwen2.5 Technical Report", arXiv 2412.15115) and transformers'
printouts of the configs in public repositories; the parameter counts that follow are those of the models' pages (a test
compares them). SmolLM2's entries are what its GGUF file is imported with.
"""

from collections.abc import Mapping
from typing import Any

KEYS = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "vocab_size", "max_position_embeddings", "rms_norm_eps",
)  # fmt: skip


def entries(*values: Any, **others: Any) -> dict[str, Any]:
    """A config.json with these values of KEYS, and others."""
    return {**dict(zip(KEYS, values, strict=True)), **others}


LLAMA_2_7B = entries("llama", 4096, 11008, 32, 32, 32, 32000, 4096, 1e-5, tie_word_embeddings=False)
LLAMA_7B = {**LLAMA_2_7B, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6}
LLAMA_3_1_8B = entries(
    "llama", 4096, 14336, 32, 32, 8, 128256, 131072, 1e-5, tie_word_embeddings=False, rope_theta=500000.0
)
LLAMA_3_2_1B = entries(
    "llama", 2048, 8192, 16, 32, 8, 128256, 131072, 1e-5, tie_word_embeddings=True, rope_theta=500000.0, head_dim=64
)
MISTRAL_7B = entries(
    "mistral", 4096, 14336, 32, 32, 8, 32000, 32768, 1e-5, tie_word_embeddings=False, sliding_window=None
)
QWEN_2_5_7B = entries(
    "qwen2", 3584, 18944, 28, 28, 4, 152064, 32768, 1e-6, tie_word_embeddings=False,
    rope_theta=1000000.0, use_sliding_window=False, max_window_layers=28,
)  # fmt: skip
SMOLLM2_135M = entries("llama", 576, 1536, 30, 9, 3, 49152, 8192, 1e-5, tie_word_embeddings=True, rope_theta=100000.0)
KNOWN_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "huggyllama/llama-7b": LLAMA_7B,
    "meta-llama/Llama-2-7b-hf": LLAMA_2_7B,
    "meta-llama/Llama-2-7b-chat-hf": LLAMA_2_7B,
    "meta-llama/Llama-3.1-8B": LLAMA_3_1_8B,
    "meta-llama/Llama-3.1-8B-Instruct": LLAMA_3_1_8B,
    "meta-llama/Llama-3.2-1B": LLAMA_3_2_1B,
    "meta-llama/Llama-3.2-1B-Instruct": LLAMA_3_2_1B,
    "mistralai/Mistral-7B-Instruct-v0.2": MISTRAL_7B,
    "mistralai/Mistral-7B-v0.3": {**MISTRAL_7B, "vocab_size": 32768},
    "mistralai/Mistral-7B-Instruct-v0.3": {**MISTRAL_7B, "vocab_size": 32768},
    "Qwen/Qwen2.5-7B": {**QWEN_2_5_7B, "max_position_embeddings": 131072},
    "Qwen/Qwen2.5-7B-Instruct": QWEN_2_5_7B,
    "models/SmolLM2-135M-Instruct": SMOLLM2_135M,  # no hub id: the folder that is made of a package
}


def known_config(path: str, revision: str) -> Mapping[str, Any] | None:
    """The entries of a published target's config.json; None of one not listed here, or of another branch."""
    return KNOWN_CONFIGS.get(path) if revision == "main" else None
