"""Import a GGUF file into an ordinary Hugging Face directory, tensor by tensor.

Transformers opens GGUF files too, but loads the whole model, drops unknown parts (the rotary factors of Llama 3) and
cannot save the result. Tests compare with its de-quantised logits, bit for bit.

Shape suffixes used in this file:
    N = heads, D = head width, C = columns of a matrix (a bias has none)
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gguf import GGML_QUANT_SIZES, MODEL_ARCH_NAMES, GGMLQuantizationType, dequantize, get_tensor_name_map
from tokenizers import pre_tokenizers
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast
from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

from architectures.checkpoint import TensorInfo, require_replaceable, write_weights
from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.families.family import Gguf
from architectures.files import read_json_object, staged_folder, write_json
from architectures.gguf_format import (
    ARCHITECTURES,
    TOKEN_KEYS,
    GgufHeader,
    GgufTensor,
    gguf_config,
    gguf_inputs,
    gguf_parts,
    read_gguf_header,
)
from architectures.manifest import MANIFEST_NAME, write_manifest
from architectures.shapes import Shape, checkpoint_tensors, rope_for_transformers_4

ROPE_FACTORS = "rope_freqs.weight"
OF_AN_EXPERT, STACK_AXES = re.compile(r"\.experts\.(\d+)\."), 3
GPT2_SPLITTING = (None, "default", "gpt-2")  # values of `tokenizer.ggml.pre` that mean GPT-2's pre-tokenizer
DIGITS_APART = "smollm"  # the same after a step that splits every digit: spaces before a number stay together
TOKENIZER_ERRORS = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError)
MAX_CHARS_SHOWN = 200
SPECIAL_TOKENS = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}


def import_gguf(file: Path, out: Path, *, dtype: str = "float32") -> None:
    """De-quantise a GGUF file into a Hugging Face directory: weights, config, tokenizer, generation_config, manifest.

    Args:
        file: A GGUF file of one of gguf_format.ARCHITECTURES, or any part of a split one.
        out: An earlier import there is replaced.
        dtype: Of the written weights: float32, bfloat16 or float16.

    Raises:
        UserError: If the file is missing, not GGUF, truncated, of another architecture or has unknown tensors, or out
            contains something else.
    """
    header, shape, stored = open_gguf(file)
    entries = gguf_config(file, header)
    family = FAMILIES[shape.family]
    entries = rope_entries(file, header, entries) | entries  # some families have rope_parameters already
    require_replaceable(out, MANIFEST_NAME, reading=file, stage="import-gguf")

    written = getattr(torch, dtype)
    layout = {name: TensorInfo(written, header.tensors[stored[name]].size) for name in stored}
    with staged_folder(out) as folder:
        write_weights(layout, lambda name: read_tensor(header, stored[name], shape).to(written), folder)
        settings = {key: value for key, value in entries.items() if key != "rope_theta"}
        AutoConfig.for_model(**settings, architectures=[family.architecture], dtype=dtype).save_pretrained(folder)
        config = read_json_object(folder / "config.json", "Import the file again.")
        write_json(config | rope_for_transformers_4(config), folder / "config.json")
        write_generation_config(header, entries, folder)
        write_tokenizer(gguf_parts(file)[0], header, folder)
        write_manifest(folder, stage="import-gguf", inputs=gguf_inputs(file), file=str(file), dtype=dtype)


def open_gguf(file: Path) -> tuple[GgufHeader, Shape, dict[str, str]]:
    """Return header, shape, and the stored name of each tensor of a whole file; errors as `import_gguf`."""
    header = with_single_experts(read_gguf_header(file))
    shape = Shape.from_config(gguf_config(file, header), where=str(file))
    stored = gguf_names(shape)
    require_gguf_tensors(file, header, {stored[name]: size for name, size in checkpoint_tensors(shape).items()})
    require_known_splitting(file, header)
    return header, shape, stored


def with_single_experts(header: GgufHeader) -> GgufHeader:
    """Replace each stack of experts, [experts, rows, columns], by its matrices: NAME[0], NAME[1], ..."""
    tensors: dict[str, GgufTensor] = {}
    for name, tensor in header.tensors.items():
        if "_exps." not in name or len(tensor.size) != STACK_AXES:
            tensors[name] = tensor
            continue
        size = tensor.size[1:]
        step = num_bytes(name, replace(tensor, size=size))
        for expert in range(tensor.size[0]):
            tensors[f"{name}[{expert}]"] = replace(tensor, size=size, offset=tensor.offset + expert * step)
    return replace(header, tensors=tensors)


def gguf_names(shape: Shape) -> dict[str, str]:
    """Return the GGUF name of each tensor; that of an expert's matrix as in `with_single_experts`."""
    gguf = FAMILIES[shape.family].gguf
    assert gguf is not None, "families without a llama.cpp architecture are rejected earlier"
    architecture = next(each for each, name in MODEL_ARCH_NAMES.items() if name == gguf.name)
    known = get_tensor_name_map(architecture, shape.layers)
    names = {}
    for name in checkpoint_tensors(shape):
        expert = OF_AN_EXPERT.search(name)
        stored = known.get_name(OF_AN_EXPERT.sub(".experts.", name), (".weight", ".bias"))
        names[name] = f"{stored}[{expert[1]}]" if expert else str(stored)
    return names


def require_gguf_tensors(file: Path, header: GgufHeader, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Check that the file has exactly the expected tensors, whole, with their sizes and a known quantisation."""
    for name, size in expected.items():
        if name not in header.tensors:
            raise UserError(f"{file}: {name} is missing. Use a GGUF file of a complete model.")
        if header.tensors[name].size != size:
            raise UserError(
                f"{file}: {name} has shape {list(header.tensors[name].size)}, but the header implies {list(size)}. "
                "Download the file again."
            )
    architecture = header.metadata["general.architecture"]
    known = {*expected, ROPE_FACTORS} if ARCHITECTURES[architecture][1].rope_factors else {*expected}
    byte_ranges = tensor_byte_ranges(header)
    for name, tensor in header.tensors.items():
        if name not in known:
            raise UserError(
                f"{file}: {name} is not a tensor of {architecture}, and dropping it would change the model. "
                "Use the original Hugging Face checkpoint as the target."
            )
        end, available = byte_ranges[name][1], tensor.file.stat().st_size
        if end > available:
            raise UserError(
                f"{tensor.file}: truncated within {name}: {end} bytes are needed, the file has {available}. "
                "Download the file again."
            )


def tensor_byte_ranges(header: GgufHeader) -> dict[str, tuple[int, int]]:
    """Return the byte range of each tensor in its file, in file order; UserError if two overlap."""
    in_order = sorted(header.tensors.items(), key=lambda pair: (pair[1].file, pair[1].offset))
    byte_ranges = {name: (tensor.offset, tensor.offset + num_bytes(name, tensor)) for name, tensor in in_order}
    for (name, before), (other, after) in pairwise(in_order):
        if before.file == after.file and after.offset < byte_ranges[name][1]:
            raise UserError(f"{after.file}: {other} overlaps {name} at byte {after.offset}. Download the file again.")
    return byte_ranges


def num_bytes(name: str, tensor: GgufTensor) -> int:
    try:
        kind = GGMLQuantizationType(tensor.type_id)
        block_size = GGML_QUANT_SIZES[kind][0]
    except (ValueError, KeyError) as error:
        raise UserError(
            f"{tensor.file}: {name} has unknown quantisation type {tensor.type_id}. Use a common type such as Q8_0."
        ) from error
    if not tensor.size or tensor.size[-1] % block_size:
        raise UserError(
            f"{tensor.file}: {name} has shape {list(tensor.size)}, not a multiple of the block size {block_size}. "
            "Download the file again."
        )
    return stored_bytes(tensor.size, kind)


def stored_bytes(size: tuple[int, ...], kind: GGMLQuantizationType) -> int:
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    return prod(size) // block_size * block_bytes


def read_tensor(header: GgufHeader, name: str, shape: Shape) -> Tensor:
    """Read one tensor, de-quantised to float32 and in the row order of transformers."""
    tensor = header.tensors[name]
    raw = np.fromfile(tensor.file, dtype=np.uint8, count=num_bytes(name, tensor), offset=tensor.offset)
    rows = raw.reshape(*tensor.size[:-1], -1)
    with np.errstate(invalid="ignore", over="ignore"):  # checked below
        weight = torch.from_numpy(dequantize(rows, GGMLQuantizationType(tensor.type_id)).astype(np.float32, copy=False))
    if not torch.stack(weight.aminmax()).isfinite().all():
        raise UserError(f"{tensor.file}: {name} contains NaN or infinity. Download the file again.")
    family, gguf = ARCHITECTURES[header.metadata["general.architecture"]]
    weight = in_row_order(gguf, name, weight, shape, (-1, 2))
    return weight - family.norm_offset if weight.dim() == 1 else weight  # llama.cpp multiplies by the stored norm


def in_row_order(gguf: Gguf, name: str, weight: Tensor, shape: Shape, rows: tuple[int, int]) -> Tensor:
    """Reorder the rows of a query or key tensor, if llama.cpp stores them in its own order.

    llama.cpp rotates adjacent rows (0,1), (2,3), ...; transformers rotates halves.

    Args:
        weight: [N * D, C], or [N * D] for a bias.
        rows: How its order divides D: llama.cpp's into (-1, 2), transformers' into (2, -1).
    """
    if gguf.own_row_order:
        for part, heads in ((".attn_q.", shape.heads), (".attn_k.", shape.kv_heads)):
            if part in name:
                return weight.reshape(heads, *rows, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)
    return weight


def rope_factors(rope: Mapping[str, Any], head_dim: int) -> np.ndarray:
    """Return the divisor of each rotary frequency for rope_type llama3, as float32.

    Source: "The Llama 3 Herd of Models" (arXiv 2407.21783), sec. 3.4.2 names the scaling; the formula is that of
    transformers' rope_type llama3: short wavelengths stay, long ones are multiplied by `factor`, with a blend between.
    """
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    wavelengths = 2 * math.pi * float(rope["rope_theta"]) ** exponents  # in tokens
    turns = rope["original_max_position_embeddings"] / wavelengths  # in the original context
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / (kept + (1 - kept) / rope["factor"])).astype(np.float32)


def rope_entries(file: Path, header: GgufHeader, entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotary settings for config.json; a Llama 3 file has only one factor per frequency.

    All Llama 3.1 and 3.2 models share three of the four settings; the fourth is the largest factor. They are used only
    if they reproduce the file's factors.
    """
    plain = {"rope_type": "default", "rope_theta": entries.get("rope_theta", 10000.0)}
    if ROPE_FACTORS not in header.tensors:
        return {"rope_parameters": plain}
    tensor = header.tensors[ROPE_FACTORS]
    if tensor.type_id != GGMLQuantizationType.F32 or tensor.size != (entries["head_dim"] // 2,):
        raise UserError(
            f"{file}: {ROPE_FACTORS} must have {entries['head_dim'] // 2} F32 values, got {list(tensor.size)} of "
            f"type {tensor.type_id}. Download the file again."
        )
    factors = np.fromfile(tensor.file, np.float32, count=tensor.size[0], offset=tensor.offset)
    if not (np.isfinite(factors).all() and factors.min() > 0 and factors.max() >= 1):
        raise UserError(f"{file}: {ROPE_FACTORS} must contain factors > 0. Download the file again.")
    scaled = plain | {
        "rope_type": "llama3",
        "factor": float(factors.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    if not np.allclose(rope_factors(scaled, entries["head_dim"]), factors):
        raise UserError(
            f"{file}: {ROPE_FACTORS} differs from Llama 3's rotary factors. "
            "Use the original Hugging Face checkpoint as the target."
        )
    return {"rope_parameters": scaled}


def write_generation_config(header: GgufHeader, entries: Mapping[str, Any], folder: Path) -> None:
    """Write generation_config.json; a chat model with its own end-of-turn token stops at that one too."""
    ids = {key: entries[key] for key in TOKEN_KEYS.values() if key in entries}
    end_of_turn = header.metadata.get("tokenizer.ggml.eot_token_id", ids.get("eos_token_id"))
    if end_of_turn != ids.get("eos_token_id"):
        ids["eos_token_id"] = [ids["eos_token_id"], end_of_turn] if "eos_token_id" in ids else end_of_turn
    GenerationConfig(**ids).save_pretrained(folder)


def require_known_splitting(file: Path, header: GgufHeader) -> None:
    """Check that the installed transformers supports the file's pre-tokenizer; older versions support only one."""
    if header.metadata.get("tokenizer.ggml.model") != "gpt2":
        return
    splitting = header.metadata.get("tokenizer.ggml.pre")
    if splitting not in {*GPT2_SPLITTING, DIGITS_APART, *known_splittings()}:
        raise UserError(
            f"{file}: transformers {transformers.__version__} does not support tokenizer.ggml.pre={splitting}. "
            "Install a newer version, or use the original Hugging Face checkpoint."
        )


def known_splittings() -> Mapping[str, str]:
    """Return the values of `tokenizer.ggml.pre` that the installed transformers supports, with their patterns.

    It silently ignores every other value.
    """
    try:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
    except ImportError:  # transformers 5.17
        return {}
    return GGUF_PRE_TOKENIZER_SPLITS


def open_tokenizer(kind: Any, folder: Path, hint: str, **options: str) -> Any:
    """Load a tokenizer with a class of transformers, without running code of the directory.

    Raises:
        UserError: If there is none of the tokenizers library, or it is damaged; the message ends with the hint.
    """
    where = folder / options.get("gguf_file", "")
    try:
        tokenizer = kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **options)
    except Exception as error:  # the libraries raise plain Exceptions, too
        if not (isinstance(error, TOKENIZER_ERRORS) or type(error) is Exception):
            raise
        message = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_CHARS_SHOWN]
        raise UserError(f"{where}: its tokenizer could not be read ({message}). {hint}") from error
    if not tokenizer.is_fast or not tokenizer.get_vocab():
        raise UserError(f"{where}: contains no tokenizer.json. {hint}")
    return tokenizer


def write_tokenizer(file: Path, header: GgufHeader, folder: Path) -> None:
    """Write the tokenizer and chat template of a GGUF file.

    Transformers rebuilds the vocabulary, with GPT-2's pre-tokenizer if it knows no other. Special tokens are read from
    the header: transformers 5.17 takes BOS for EOS and sets no BOS.
    """
    known = header.metadata["general.architecture"] in GGUF_SUPPORTED_ARCHITECTURES
    kind = AutoTokenizer if known else PreTrainedTokenizerFast
    rebuilt = open_tokenizer(kind, file.parent, "Download the file again.", gguf_file=file.name)
    if header.metadata.get("tokenizer.ggml.pre") == DIGITS_APART:
        words = pre_tokenizers.ByteLevel(add_prefix_space=False)
        steps = [pre_tokenizers.Digits(individual_digits=True), words]
        rebuilt.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    ids = {name: header.metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in SPECIAL_TOKENS.items()}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=rebuilt.backend_tokenizer,
        chat_template=header.metadata.get("tokenizer.chat_template"),
        **{name: rebuilt.convert_ids_to_tokens(token) for name, token in ids.items() if token is not None},
    )
    is_sentencepiece = header.metadata.get("tokenizer.ggml.model") == "llama"  # llama.cpp's default if absent
    tokenizer.add_bos_token = header.metadata.get("tokenizer.ggml.add_bos_token", is_sentencepiece)
    tokenizer.add_eos_token = header.metadata.get("tokenizer.ggml.add_eos_token", False)
    tokenizer.save_pretrained(folder)
    settings = read_json_object(folder / "tokenizer_config.json", "Import the file again.")
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"  # transformers 4 has no TokenizersBackend
    write_json(settings, folder / "tokenizer_config.json")
