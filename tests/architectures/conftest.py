"""Random checkpoints of every family, whose biases and norms differ from layer to layer."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

CLASSIC = ("opt", "gpt_neox", "bloom", "gpt2")
FAMILY_SETTINGS: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    "mistral": {"tie_word_embeddings": False, "sliding_window": 8},
    "qwen2": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
    "qwen3": {"head_dim": 32, "attention_bias": True},
    "gemma2": {"head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 32},
    "gemma3_text": {"head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 32, "sliding_window_pattern": 3},
    "phi3": {"tie_word_embeddings": False, "head_dim": 16},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "gpt_neox": {"tie_word_embeddings": False},
    "bloom": {"n_layer": 4, "n_head": 4},
    "gpt2": {"n_layer": 4, "n_head": 4, "n_embd": 64, "n_positions": 512, "n_inner": 96},
}
WIDE_FAMILIES = tuple(name for name in FAMILY_SETTINGS if name not in CLASSIC)


def perturb_vectors(folder: Path) -> Path:
    """Fresh biases are 0 and norms 1, the same in every layer: give each its own values."""
    generator = torch.Generator().manual_seed(5)
    file = folder / "model.safetensors"
    tensors = {
        name: tensor + 0.2 * torch.randn(tensor.shape, generator=generator) if tensor.dim() == 1 else tensor
        for name, tensor in load_file(file).items()
    }
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="session")
def family_checkpoint(make_checkpoint: Callable[..., Path]) -> Callable[[str], Path]:
    """The folder of a family's random checkpoint of four layers, made once; not to be changed."""
    made: dict[str, Path] = {}

    def of(family: str) -> Path:
        if family not in made:
            made[family] = perturb_vectors(make_checkpoint(model_type=family, **FAMILY_SETTINGS[family]))
        return made[family]

    return of


@pytest.fixture
def family_copy(family_checkpoint: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A family's checkpoint that a test may change."""

    def of(family: str) -> Path:
        return Path(shutil.copytree(family_checkpoint(family), tmp_path / f"copy-{family}"))

    return of
