"""Whether engines can serve a shape, over how many devices, and in which quantised formats. Pure; no torch."""

from typing import Annotated

from pydantic import Field

from architectures.shapes.shape import Shape

MAX_DEGREE = 64
TensorParallel = Annotated[int, Field(ge=1, le=MAX_DEGREE, description="Devices that share both models.")]
Q4_0_BLOCK, K_QUANT_BLOCK = 32, 256  # llama.cpp, ggml-common.h: QK4_0 and QK_K


def serving_problems(shape: Shape) -> list[str]:
    """Why no engine can serve a shape, one sentence each; empty when one can.

    Source: vLLM and transformers, the checks of their LLaMA models: whole groups of query heads, rotary pairs, and
    hidden_size a multiple of num_attention_heads even where head_dim is written out.
    """
    problems = []
    if shape.heads % shape.kv_heads:
        problems.append(
            f"{shape.heads} heads cannot share {shape.kv_heads} key/value heads evenly; kv_heads must divide heads."
        )
    if shape.hidden % shape.heads:
        problems.append(
            f"hidden {shape.hidden} is no multiple of {shape.heads} heads, which transformers refuses; "
            f"{shape.hidden // shape.heads * shape.heads or shape.heads} would do."
        )
    if shape.head_dim % 2:
        problems.append(f"head_dim {shape.head_dim} is odd, and rotary positions turn pairs.")
    return problems


def tensor_parallel_degrees(shape: Shape) -> list[int]:
    """Over how many devices tensor parallelism can divide the shape.

    Source: vLLM, ModelConfig.verify_with_parallel_config and LlamaAttention: the degree divides the heads, and divides
    the key/value heads or is a multiple of them (they are then copied); the feed-forward width is divided too.
    """
    return [
        degree
        for degree in range(1, MAX_DEGREE + 1)
        if shape.heads % degree == 0
        and shape.intermediate % degree == 0
        and (shape.kv_heads % degree == 0 or degree % shape.kv_heads == 0)
    ]


def quantised_formats(shape: Shape) -> str:
    """Which of llama.cpp's formats the rows of every matrix fit: "k-quants", "q8_0, q4_0" or "none"."""
    rows = (shape.hidden, shape.intermediate, shape.heads * shape.head_dim)
    if all(row % K_QUANT_BLOCK == 0 for row in rows):
        return "k-quants"
    return "q8_0, q4_0" if all(row % Q4_0_BLOCK == 0 for row in rows) else "none"
