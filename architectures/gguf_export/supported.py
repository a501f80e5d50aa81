"""Which models llama.cpp computes as transformers does, and the refusal of the others."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.families.family import Gguf
from architectures.shapes.shape import Shape

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

CONVERTER = "Convert the folder with llama.cpp's convert_hf_to_gguf.py."
SERVE_AS_IT_IS = "Serve the folder itself, with transformers or vLLM."
ROPE_TYPES = {  # the settings llama.cpp knows of each type, beside rope_type and rope_theta
    "default": (),
    "linear": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
NEUTRAL = {"partial_rotary_factor": 1.0, "attention_factor": None, "beta_fast": 32, "beta_slow": 1, "truncate": True}


def gguf_architecture(folder: Path, shape: Shape, config: "PreTrainedConfig") -> Gguf:
    """How llama.cpp has a model.

    Args:
        folder: For messages.
        shape: Of the model.
        config: Its config.json, as transformers reads it.

    Raises:
        UserError: If llama.cpp has no such model, or would compute it otherwise than transformers does.
    """
    gguf = refuse_other_shapes(folder, shape)
    if config.hidden_act != "silu":
        refuse(folder, f"hidden_act is {config.hidden_act!r}, and llama.cpp computes {shape.family} with silu")
    refuse_windows(folder, config)
    refuse_other_rope(folder, config.rope_parameters, gguf)
    refuse_other_rotary_layers(folder, shape, config, gguf)
    return gguf


def refuse_other_shapes(folder: Path, shape: Shape) -> Gguf:
    """Raise UserError for a family or sizes that no GGUF file of ours holds; `folder` is for the message."""
    family = FAMILIES[shape.family]
    if family.gguf is None:
        remedy = CONVERTER if "llama.cpp" in family.engines else SERVE_AS_IT_IS
        raise UserError(f"{folder}: model_type {shape.family} does not become a GGUF file: {family.no_gguf}. {remedy}")
    refuse_other_sizes(folder, shape, family.gguf)
    return family.gguf


def refuse_windows(folder: Path, config: "PreTrainedConfig") -> None:
    """Raise UserError where a layer looks back a part of the way alone: llama.cpp's layers see all there is."""
    window = getattr(config, "sliding_window", None)
    windowed = "sliding_attention" in (getattr(config, "layer_types", None) or ["sliding_attention"])
    if window is not None and windowed and window < config.max_position_embeddings:
        refuse(folder, f"layers look back {window} tokens of {config.max_position_embeddings}, and in llama.cpp all")


def refuse_other_rotary_layers(folder: Path, shape: Shape, config: "PreTrainedConfig", gguf: Gguf) -> None:
    """Raise UserError where other layers are without rotary positions than llama.cpp leaves without."""
    expected = gguf.rotary_layers(shape.layers)
    if expected is not None and list(config.no_rope_layers) != expected:
        refuse(
            folder,
            f"no_rope_layers is {config.no_rope_layers}, and llama.cpp's {gguf.name} leaves rotary positions out of "
            f"every {gguf.rope_period}th layer",
        )


def refuse_other_rope(folder: Path, rope: dict[str, Any], gguf: Gguf) -> None:
    """Raise UserError for rotary settings that a GGUF file has no entries for."""
    kind = rope.get("rope_type", "default")
    if kind == "llama3" and not gguf.rope_factors:
        refuse(folder, f"rope_type is 'llama3', whose factors llama.cpp's {gguf.name} does not read")
    if kind not in ROPE_TYPES:
        refuse(folder, f"rope_type is {kind!r}, and {', '.join(ROPE_TYPES)} are written")
    for key, value in rope.items():
        known = key in ("rope_type", "type", "rope_theta", *ROPE_TYPES[kind])
        if not known and value is not None and NEUTRAL.get(key) != value:
            refuse(folder, f"rope_parameters.{key} is {value!r}, which no entry of a GGUF file holds")


def refuse_other_sizes(folder: Path, shape: Shape, gguf: Gguf) -> None:
    """Raise UserError for tensors that llama.cpp's loader of this architecture has no place for."""
    query = shape.heads * shape.head_dim
    if gguf.query_is_hidden and query != shape.hidden:
        refuse(
            folder,
            f"{shape.heads} heads of {shape.head_dim} make {query} query channels, and llama.cpp's {gguf.name} has "
            f"hidden_size={shape.hidden} of them",
        )
    if shape.tied and not gguf.tied_head:
        refuse(folder, f"its output head is its embedding, and llama.cpp's {gguf.name} has one of its own")
    if not gguf.ffn_bias and shape.ffn_bias:
        refuse(folder, f"mlp_bias is true, and llama.cpp's {gguf.name} has no bias in its feed-forward")
    if not gguf.attention_bias and shape.qkv_bias:
        refuse(folder, f"attention_bias is true, and llama.cpp's {gguf.name} has no bias behind its attention")


def refuse(folder: Path, fact: str) -> NoReturn:
    """Raise UserError for a config.json."""
    raise UserError(f"{folder / 'config.json'}: {fact}, so it does not become a GGUF file. {SERVE_AS_IT_IS}")
