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

LLAMA_2_7B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
LLAMA_7B = {**LLAMA_2_7B, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6}
LLAMA_3_1_8B = {
    **LLAMA_2_7B,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "rope_theta": 500000.0,
    "vocab_size": 128256,
}
LLAMA_3_2_1B = {
    **LLAMA_3_1_8B,
    "head_dim": 64,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "tie_word_embeddings": True,
}
MISTRAL_7B = {
    **LLAMA_2_7B,
    "model_type": "mistral",
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_key_value_heads": 8,
    "sliding_window": None,
}
QWEN_2_5_7B = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
SMOLLM2_135M = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
}
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
