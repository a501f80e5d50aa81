"""A checkpoint folder becomes a GGUF file: metadata, then each tensor read, put in llama.cpp's order and quantised.

Shape suffixes used in this file:
    N = heads, D = head width, C = columns of a matrix (a bias has none)
"""

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_VERSION, GGUFWriter
from gguf.quants import quantize
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig

from architectures.checkpoints.weights import Weights, open_weights, require_tensors
from architectures.conversion.folders import write_whole
from architectures.conversion.small_draft import read_small_draft
from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.families.family import Gguf
from architectures.files.atomic import partial_path
from architectures.gguf.importing import gguf_names
from architectures.gguf_export.kinds import FILE_TYPES, Stored, fallen_back, stored_tensors
from architectures.gguf_export.names import GgufKind
from architectures.gguf_export.rope import FACTORS_NAME, rope_entries, rope_factors
from architectures.gguf_export.supported import gguf_architecture
from architectures.gguf_export.vocabulary import GgufVocabulary, entries, read_vocabulary
from architectures.progress.track import track
from architectures.pruning.prune import require_numbers
from architectures.shapes.shape import Shape, checkpoint_tensors
from architectures.targets.target import read_config

MOST_F16 = 65504.0  # what F16 holds, and so the scale of a quantised block


@dataclass(frozen=True)
class GgufFile:
    """A file that was written.

    Attributes:
        fallen_back: The tensors whose rows are no whole blocks of its kind, and are F16.
    """

    path: Path
    num_bytes: int
    fallen_back: list[str]


@dataclass(frozen=True)
class Model:
    """A checkpoint folder that was found to become a GGUF file."""

    name: str
    gguf: Gguf
    shape: Shape
    config: PreTrainedConfig
    vocabulary: GgufVocabulary
    weights: Weights


def export_gguf(folder: Path, out: Path, kind: GgufKind, *, name: str) -> GgufFile:
    """Write a checkpoint folder as a GGUF file; it appears whole or not at all.

    A small output head is grown back to the target's vocabulary first (architectures/conversion): llama.cpp has a row
    for every id.

    Args:
        folder: A Hugging Face folder of a family that has an entry `gguf`.
        out: The file; an earlier one there is replaced.
        kind: Of its matrices.
        name: What the file calls the model.

    Raises:
        UserError: If llama.cpp would compute the model or cut text otherwise than the folder says, a weight is no
            number or more than F16 holds, or the disk has too little room.
    """
    if not Shape.from_config(read_config(folder), where=str(folder / "config.json")).head_vocab:
        return write_gguf(read_model(folder, name), out, kind)
    with tempfile.TemporaryDirectory(prefix=".grown-", dir=out.parent) as grown:
        write_whole(read_small_draft(folder), Path(grown))
        return write_gguf(read_model(Path(grown), name), out, kind)


def read_model(folder: Path, name: str) -> Model:
    """What a GGUF file is made of; the weights are left on disk."""
    shape = Shape.from_config(read_config(folder), where=str(folder / "config.json"))
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    gguf = gguf_architecture(folder, shape, config)
    weights = open_weights(folder)
    require_tensors(weights, checkpoint_tensors(shape), ignored=FAMILIES[shape.family].ignored_suffixes)
    return Model(name, gguf, shape, config, read_vocabulary(folder, shape.vocab), weights)


def write_gguf(model: Model, out: Path, kind: GgufKind) -> GgufFile:
    names = {stored: name for name, stored in gguf_names(model.shape).items()}
    sizes = checkpoint_tensors(model.shape)
    stored = stored_tensors({gguf_name: sizes[name] for gguf_name, name in names.items()}, kind)
    factors = rope_factors(model.config.rope_parameters, model.shape.head_dim)
    if factors is not None:
        stored |= stored_tensors({FACTORS_NAME: factors.shape}, kind)
    require_disk_space(out, stored)

    def read(name: str) -> Tensor:
        if name == FACTORS_NAME:
            return torch.from_numpy(factors)
        return read_weight(model, names[name], name)

    partial = partial_path(out)
    try:
        writer = GGUFWriter(partial, model.gguf.name)
        add_metadata(writer, model, kind)
        write_tensors(writer, stored, read)
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    return GgufFile(out, out.stat().st_size, fallen_back(stored, kind))


def require_disk_space(out: Path, stored: Mapping[str, Stored]) -> None:
    """Raise UserError if the disk has too little room for the tensors."""
    needed, free = sum(tensor.num_bytes for tensor in stored.values()), shutil.disk_usage(out.parent).free
    if needed > free:
        raise UserError(
            f"{out}: needs {needed / 2**30:.2f} GiB, the disk has {free / 2**30:.2f} GiB free. Make room there."
        )


def read_weight(model: Model, name: str, gguf_name: str) -> Tensor:
    """One tensor in float32 and in llama.cpp's row order."""
    weight = require_numbers(model.weights, name).float()
    if weight.abs().max() > MOST_F16:
        raise UserError(
            f"{model.weights.files[name]}: {name} holds {weight.abs().max():g}, more than F16 holds ({MOST_F16:g}). "
            "Serve the folder itself, with transformers or vLLM."
        )
    if model.gguf.own_row_order:
        for part, heads in ((".attn_q.", model.shape.heads), (".attn_k.", model.shape.kv_heads)):
            if part in gguf_name:
                return neighbouring_pairs(weight, heads)
    return weight


def neighbouring_pairs(weight: Tensor, heads: int) -> Tensor:
    """llama.cpp's row order, which rotates neighbouring rows (0,1), (2,3), ... where transformers rotates halves.

    Args:
        weight: [N * D, C], or [N * D] for a bias.
        heads: N.
    """
    halves_N2DC = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return halves_N2DC.transpose(1, 2).reshape(weight.shape)


def add_metadata(writer: GGUFWriter, model: Model, kind: GgufKind) -> None:
    """Every entry of the file."""
    writer.add_type("model")
    writer.add_name(model.name)
    writer.add_file_type(FILE_TYPES[kind])
    writer.add_quantization_version(GGML_QUANT_VERSION)
    for key, value in model_entries(model).items():
        add_entry(writer, f"{model.gguf.name}.{key}", value)
    for key, value in entries(model.vocabulary):
        add_entry(writer, key, value)
    writer.add_token_list(list(model.vocabulary.tokens))
    writer.add_token_types(list(model.vocabulary.types))
    if model.vocabulary.merges:
        writer.add_token_merges(list(model.vocabulary.merges))
    if model.vocabulary.scores:
        writer.add_token_scores(list(model.vocabulary.scores))


def model_entries(model: Model) -> dict[str, Any]:
    """The entries below the architecture's name; head widths are always said, engines must not guess them."""
    shape = model.shape
    return {
        "vocab_size": shape.vocab,
        "context_length": model.config.max_position_embeddings,
        "embedding_length": shape.hidden,
        "block_count": shape.layers,
        "feed_forward_length": shape.intermediate,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": float(model.config.rms_norm_eps),
        "rope.dimension_count": shape.head_dim,
        **{entry: float(getattr(model.config, key)) for key, entry in model.gguf.scales.items()},
        **{f"rope.{key}": value for key, value in rope_entries(model.config.rope_parameters).items()},
    }


def add_entry(writer: GGUFWriter, key: str, value: Any) -> None:
    """One scalar entry, in the type GGUF has for it."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def write_tensors(writer: GGUFWriter, stored: Mapping[str, Stored], read: Any) -> None:
    """Header and tensors; memory holds one of them at a time."""
    for name, tensor in stored.items():
        writer.add_tensor_info(name, tensor.size, np.dtype(np.float32), tensor.num_bytes, raw_dtype=tensor.type)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name in track(list(stored), description=f"writing {writer.path}", total=len(stored)):
            writer.write_tensor_data(quantize(read(name).contiguous().numpy(), stored[name].type))
    finally:
        writer.close()
