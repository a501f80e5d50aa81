"""A draft and a target as folders of a few hundred bytes: config, tokenizer, settings. No weights, no torch."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

VOCAB = 300
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
}
SETTINGS = {
    "num_assistant_tokens": 4,
    "num_assistant_tokens_schedule": "constant",
    "assistant_confidence_threshold": 0.0,
}


def texts(count: int = VOCAB) -> dict[str, int]:
    return {f"<{number}>": number for number in range(count)}


def files() -> dict[str, dict[str, Any]]:
    """A checkpoint's small files; edit them before they are written."""
    return {
        "config.json": dict(CONFIG),
        "tokenizer.json": {"model": {"type": "BPE", "vocab": texts(), "merges": []}, "added_tokens": []},
        "tokenizer_config.json": {
            "bos_token": "<0>",
            "eos_token": {"content": "<1>"},
            "add_bos_token": True,
            "add_eos_token": False,
            "chat_template": "{{ messages }}",
        },
        "generation_config.json": dict(SETTINGS),
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """write(name, files) -> the folder they were written into."""

    def write(name: str, of: dict[str, dict[str, Any]] | None = None) -> str:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        for file, content in (files() if of is None else of).items():
            (folder / file).write_text(json.dumps(content), encoding="utf-8")
        return str(folder)

    return write
