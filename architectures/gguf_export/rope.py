"""Rotary settings as a GGUF file states them: entries, and for Llama 3 a tensor of factors. Pure."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

FACTORS_NAME = "rope_freqs.weight"


def rope_factors(rope: Mapping[str, Any], head_dim: int) -> np.ndarray | None:
    """By what each rotary frequency of a Llama 3 is divided, as float32; None where the type is another.

    Source: "The Llama 3 Herd of Models" (arXiv 2407.21783), sec. 3.4.2 names the scaling; the formula is that of
    transformers' rope_type llama3: short waves stay, long ones are `factor` times as long, between them a blend.
    """
    if rope.get("rope_type") != "llama3":
        return None
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    wavelengths = 2 * math.pi * float(rope["rope_theta"]) ** exponents  # in tokens
    turns = rope["original_max_position_embeddings"] / wavelengths  # in the context it was trained with first
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / (kept + (1 - kept) / rope["factor"])).astype(np.float32)


def rope_entries(rope: Mapping[str, Any]) -> dict[str, Any]:
    """Entries below `<architecture>.rope.`; a Llama 3's factors say the rest."""
    entries: dict[str, Any] = {"freq_base": float(rope["rope_theta"])}
    kind = rope.get("rope_type", "default")
    if kind in ("linear", "yarn"):
        entries |= {"scaling.type": kind, "scaling.factor": float(rope["factor"])}
    if kind == "yarn" and rope.get("original_max_position_embeddings") is not None:
        entries["scaling.original_context_length"] = rope["original_max_position_embeddings"]
    return entries
