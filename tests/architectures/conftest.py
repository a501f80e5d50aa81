"""Random checkpoints of every family, whose biases and norms differ from layer to layer; and GGUF files.

GGUF files are written with the gguf package from Hugging Face models, as llama.cpp's converter would.
"""

import json
import shutil
from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import quantize
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from architectures.families import FAMILIES
from architectures.gguf_import import gguf_names
from architectures.shapes import Shape
from tests.conftest import MERGES
from tests.families import ENCODER_DECODER

FAMILY_SETTINGS: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    "mistral": {"tie_word_embeddings": False, "sliding_window": 8},
    "qwen2": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
    "qwen3": {"head_dim": 32, "attention_bias": True},
    "gemma2": {"head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 32},
    "gemma3_text": {"head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 32, "sliding_window_pattern": 3},
    "phi3": {"tie_word_embeddings": False, "head_dim": 16},
    "smollm3": {"attention_bias": True, "no_rope_layers": [1, 0, 0, 1]},
    "olmo2": {"tie_word_embeddings": False, "rms_norm_eps": 1e-6},  # as published, not transformers' default
    "granite": {
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.1,
        "residual_multiplier": 0.22,
        "logits_scaling": 3.0,
    },
    "olmo3": {"tie_word_embeddings": False, "sliding_window": 8},
    # Norms of queries share the epsilon that a narrower residual stream scales: small, so that it does not matter.
    "exaone4": {"head_dim": 32, "sliding_window": 8, "sliding_window_pattern": 3, "rms_norm_eps": 1e-6},
    "seed_oss": {"head_dim": 32, "attention_out_bias": True},
    "glm4": {"head_dim": 32, "tie_word_embeddings": False},
    "ministral3": {"head_dim": 32},
    "qwen3_moe": {"head_dim": 32, "attention_bias": True, "rms_norm_eps": 1e-6},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "gpt_neox": {"tie_word_embeddings": False},
    "bloom": {"n_layer": 4, "n_head": 4},
    "gpt2": {"n_layer": 4, "n_head": 4, "n_embd": 64, "n_positions": 512, "n_inner": 96},
    "gpt_bigcode": {"n_layer": 4, "n_head": 4, "n_embd": 64, "n_positions": 512, "n_inner": 96},
}


def perturb(folder: Path) -> Path:
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
def family_checkpoint(
    make_checkpoint: Callable[..., Path], make_translator: Callable[..., Path]
) -> Callable[[str], Path]:
    """The folder of a family's random checkpoint of four layers, made once; not to be changed."""

    @cache
    def of(family: str) -> Path:
        make = make_translator if family in ENCODER_DECODER else partial(make_checkpoint, model_type=family)
        return perturb(make(**FAMILY_SETTINGS.get(family, {})))

    return of


@pytest.fixture
def family_copy(family_checkpoint: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A family's checkpoint that a test may change."""

    def of(family: str) -> Path:
        return Path(shutil.copytree(family_checkpoint(family), tmp_path / f"copy-{family}"))

    return of


EMPTY: Mapping[str, Any] = MappingProxyType({})
LLAMA = {"rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}}
# As many tokens as the other tokenizer: three special ones, the 256 bytes, and what makes up the word "hi".
PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "h", "i", "hi", "▁hi"]
Q8, F32 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.F32


@pytest.fixture(scope="session")
def write_gguf() -> Callable[..., Path]:
    """write_gguf(folder, file, ...) -> file; what may be changed about it stands in gguf_file."""
    return gguf_file


@pytest.fixture(scope="session")
def llama(make_checkpoint: Callable[..., Path]) -> Path:
    """A random LLaMA of 4 layers that states its rotary base."""
    return make_checkpoint(**LLAMA)


def gguf_file(
    source: Path,
    file: Path,
    *,
    matrices=Q8,
    architecture: str | None = None,
    metadata: Mapping[str, Any] = EMPTY,
    tensors: Mapping[str, np.ndarray] = EMPTY,
    without: Collection[str] = (),
    alignment: int | None = None,
    splitting: str = "smollm",
    sentencepiece: bool = False,
) -> Path:
    """A GGUF file of a Hugging Face folder.

    Args:
        source: Written by make_checkpoint.
        file: Where to.
        matrices: Quantisation of all tensors but vectors.
        architecture: general.architecture, if it shall lie.
        metadata: Further entries, by their full names.
        tensors: Further tensors.
        without: Tensors left out.
        alignment: Of the tensors, if not the usual one.
        splitting: tokenizer.ggml.pre.
        sentencepiece: A tokenizer like Llama 2's in place of the folder's.
    """
    config = AutoConfig.from_pretrained(source)
    family = FAMILIES[config.model_type]
    assert family.gguf is not None
    name = architecture or family.gguf.name
    writer = gguf.GGUFWriter(file, name)
    writer.add_name("Tiny Model")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim if config.model_type != "qwen2" else 16)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters.get("full_attention", config.rope_parameters)["rope_theta"])
    if family.window_pattern is not None:
        writer.add_sliding_window(config.sliding_window)
    for entry, key in family.gguf.counts.items():
        writer.add_uint32(f"{name}.{key}", getattr(config, entry))
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for key, value in metadata.items():
        kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add = kinds[type(value)]
        add(key, value)
    if sentencepiece:
        add_sentencepiece_tokenizer(writer)
    else:
        add_tokenizer(writer, source, splitting)
    for tensor, weight in stored_tensors(source, config).items():
        if tensor not in without:
            add_tensor(writer, tensor, weight, matrices)
    for tensor, weight in tensors.items():
        add_tensor(writer, tensor, weight, matrices)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def add_tokenizer(writer: gguf.GGUFWriter, source: Path, splitting: str) -> None:
    vocabulary = json.loads((source / "tokenizer.json").read_text())["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.get) + [merge.replace(" ", "") for merge in MERGES]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitting)
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template((source / "chat_template.jinja").read_text())


def add_sentencepiece_tokenizer(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_list(PIECES)
    writer.add_token_scores([0.0] * 259 + [-5.0, -4.0, -3.0, -1.0, -2.0])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * 5)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def stored_tensors(source: Path, config) -> dict[str, np.ndarray]:
    """Every tensor under its GGUF name; a llama's query and key rows go into llama.cpp's order, pairs not halves."""
    shape = Shape.from_config(config.to_dict())
    tensors = load_file(source / "model.safetensors")
    stored = {}
    for name, stored_name in gguf_names(shape).items():
        weight = tensors[name].numpy()
        heads = {"q_proj": shape.heads, "k_proj": shape.kv_heads}.get(name.split(".")[-2])
        if heads and config.model_type == "llama":
            halves = weight.reshape(heads, 2, shape.head_dim // 2, *weight.shape[1:])
            weight = halves.swapaxes(1, 2).reshape(weight.shape)
        stored[stored_name] = weight + FAMILIES[shape.family].norm_offset if weight.ndim == 1 else weight
    stacks: dict[str, list[np.ndarray]] = {}
    for name in [name for name in stored if name.endswith("]")]:  # in the order of the experts
        stacks.setdefault(name.split("[")[0], []).append(stored.pop(name))
    return stored | {name: np.stack(weights) for name, weights in stacks.items()}


def add_tensor(writer: gguf.GGUFWriter, name: str, weight: np.ndarray, matrices) -> None:
    kind = F32 if weight.ndim == 1 else matrices
    writer.add_tensor(name, quantize(np.ascontiguousarray(weight), kind), raw_dtype=kind)


def split_gguf(file: Path, count: int) -> list[Path]:
    """Split a file as llama-gguf-split does: all entries in the first part, the tensors over all of them."""
    reader = gguf.GGUFReader(file)
    parts = [file.with_name(f"{file.stem}-{number + 1:05d}-of-{count:05d}.gguf") for number in range(count)]
    for number, part in enumerate(parts):
        writer = gguf.GGUFWriter(part, reader.fields["general.architecture"].contents())
        for name, field in reader.fields.items() if number == 0 else ():
            if not name.startswith("GGUF.") and name != "general.architecture":
                item = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
                writer.add_key_value(name, field.contents(), field.types[0], sub_type=item)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in reader.tensors[number::count]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return parts
