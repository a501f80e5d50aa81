"""The header of a GGUF file: metadata and the list of tensors, without reading any of them. No torch.

`gguf.GGUFReader` takes seconds for the token list alone; `widedraft check` has two in all.
Source of the layout: the GGUF specification, ggml-org/ggml docs/gguf.md, versions 2 and 3.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from architectures.errors import UserError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

CONFIG_KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
TOKEN_KEYS = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "padding_token_id": "pad_token_id"}
# The `general.architecture` values we accept; each is also its model_type in transformers.
BIAS_KEYS = {  # config entry -> a tensor that is there when the entry is true
    "llama": {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"},
    "qwen2": {},
    "qwen3": {"attention_bias": "blk.0.attn_q.bias"},
}
ARCHITECTURES = tuple(BIAS_KEYS)
CHECKED_KEYS = ("attention.value_length", "rope.dimension_count")  # must agree with head_dim
NEUTRAL_KEYS = ("vocab_size",)  # said again by the embedding's size


@dataclass(frozen=True)
class GgufTensor:
    """Where one tensor lies."""

    size: tuple[int, ...]  # as torch has it: rows first; GGUF stores columns first
    type_id: int  # GGMLQuantizationType
    offset: int  # bytes from the start of the tensor data


@dataclass(frozen=True)
class GgufArray:
    """An array in the metadata, of which only the length is kept."""

    length: int


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says before its tensors."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]
    data_start: int


def read_gguf_header(file: Path) -> GgufHeader:
    """Metadata and tensor list of a GGUF file.

    Raises:
        UserError: If the file is absent, not GGUF, of another version, or ends inside the header.
    """
    if not file.is_file():
        raise UserError(f"{file}: no such file. Give the path of an existing .gguf file.")
    if file.stat().st_size < 24:
        raise UserError(f"{file}: {file.stat().st_size} bytes are no GGUF file. Fetch it again.")
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != MAGIC:
            raise UserError(f"{file}: not a GGUF file (it starts with {data[:4]!r}). Give a .gguf file.")
        try:
            return parse_header(data, file)
        except (struct.error, UnicodeDecodeError) as error:
            raise UserError(f"{file}: damaged or cut short inside the header ({error}). Fetch it again.") from error


def parse_header(data: mmap.mmap, file: Path) -> GgufHeader:
    """Walk the header from the version on."""
    cursor = Cursor(data, position=4)
    version = cursor.scalar("I")
    if version not in VERSIONS:
        raise UserError(f"{file}: GGUF version {version} is not supported. Use a little-endian file of version 2 or 3.")
    num_tensors, num_entries = cursor.scalar("Q"), cursor.scalar("Q")
    metadata = {}
    for _ in range(num_entries):
        key = cursor.text()
        metadata[key] = cursor.value(cursor.scalar("I"))
    tensors = {}
    for _ in range(num_tensors):
        name = cursor.text()
        sizes = [cursor.scalar("Q") for _ in range(cursor.scalar("I"))]
        tensors[name] = GgufTensor(tuple(reversed(sizes)), cursor.scalar("I"), cursor.scalar("Q"))
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    return GgufHeader(metadata, tensors, data_start=-(-cursor.position // alignment) * alignment)


class Cursor:
    """Reads little-endian values one after another."""

    def __init__(self, data: mmap.mmap, *, position: int):
        self.data = data
        self.position = position

    def scalar(self, code: str) -> Any:
        """One number or truth value, by its struct code."""
        (value,) = struct.unpack_from(f"<{code}", self.data, self.position)
        self.position += struct.calcsize(f"<{code}")
        return value

    def skip(self, num_bytes: int) -> None:
        """Step over bytes that must exist."""
        if self.position + num_bytes > len(self.data):
            raise struct.error(f"{num_bytes} bytes expected at {self.position}, the file has {len(self.data)}")
        self.position += num_bytes

    def text(self) -> str:
        """A string with its length before it."""
        start = self.position + 8
        self.skip(8 + self.peek_length())
        return self.data[start : self.position].decode("utf-8")

    def peek_length(self) -> int:
        """The length that stands at the cursor."""
        return struct.unpack_from("<Q", self.data, self.position)[0]

    def value(self, type_id: int) -> Any:
        """A metadata value of the given type; of an array only its length."""
        if type_id == STRING:
            return self.text()
        if type_id != ARRAY:
            return self.scalar(scalar_code(type_id))
        item_type, length = self.scalar("I"), self.scalar("Q")
        if item_type == STRING:
            for _ in range(length):
                self.skip(8 + self.peek_length())
        else:
            self.skip(length * struct.calcsize(f"<{scalar_code(item_type)}"))
        return GgufArray(length)


def scalar_code(type_id: int) -> str:
    """The struct code of a GGUF value type."""
    if type_id not in SCALARS:
        raise struct.error(f"unknown value type {type_id}")
    return SCALARS[type_id]


def gguf_config(file: Path, header: GgufHeader) -> dict[str, Any]:
    """The config.json entries that a GGUF header states, for one of the architectures we accept.

    Raises:
        UserError: If the architecture is another one, or an entry is missing, unknown or at odds with the others.
    """
    architecture = header.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UserError(
            f"{file}: general.architecture is {architecture!r}, not of the LLaMA family. "
            f"Use a GGUF file of one of: {', '.join(ARCHITECTURES)}."
        )
    prefix = f"{architecture}."
    stated = {key.removeprefix(prefix): value for key, value in header.metadata.items() if key.startswith(prefix)}
    refuse_unknown_entries(file, architecture, stated)
    config = {name: stated[key] for key, name in CONFIG_KEYS.items() if key in stated}
    config |= {
        name: header.metadata[f"tokenizer.ggml.{key}"]
        for key, name in TOKEN_KEYS.items()
        if f"tokenizer.ggml.{key}" in header.metadata
    }
    config |= {"model_type": architecture, **facts_from_tensors(file, architecture, header)}
    config["head_dim"] = head_dim(file, architecture, config, stated)
    for name in ("rms_norm_eps", "rope_theta"):
        if name in config:
            config[name] = shortest_decimal(config[name])
    return config


def refuse_unknown_entries(file: Path, architecture: str, stated: Mapping[str, Any]) -> None:
    """Every entry of the architecture must be one we carry over; a dropped one could change the model's answers."""
    neutral_scaling = {"rope.scaling.type": "none"}
    known = {*CONFIG_KEYS, *CHECKED_KEYS, *NEUTRAL_KEYS}
    for key, value in stated.items():
        if key not in known and neutral_scaling.get(key) != value:
            raise UserError(
                f"{file}: {architecture}.{key}={value} is not carried over to Hugging Face. "
                "Use the model's original Hugging Face folder as the target."
            )


def facts_from_tensors(file: Path, architecture: str, header: GgufHeader) -> dict[str, Any]:
    """Vocabulary, tying and biases, as the tensor list shows them."""
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise UserError(f"{file}: token_embd.weight is missing. Use a GGUF file of a whole model.")
    return {
        "vocab_size": embedding.size[0],
        "tie_word_embeddings": "output.weight" not in header.tensors,
        **{entry: tensor in header.tensors for entry, tensor in BIAS_KEYS[architecture].items()},
    }


def head_dim(file: Path, architecture: str, config: Mapping[str, Any], stated: Mapping[str, Any]) -> int:
    """The width of a head; every entry that speaks of it must agree."""
    missing = [key for key, name in CONFIG_KEYS.items() if name in ("hidden_size", "num_attention_heads")]
    missing = [f"{architecture}.{key}" for key in missing if key not in stated]
    if missing:
        raise UserError(f"{file}: {missing[0]} is missing. Use a GGUF file of a whole model.")
    width = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    for key in CHECKED_KEYS:
        if stated.get(key, width) != width:
            raise UserError(
                f"{file}: {architecture}.{key}={stated[key]} differs from the head width {width}. "
                "Use the model's original Hugging Face folder as the target."
            )
    return width


def shortest_decimal(stored: float) -> float:
    """The shortest decimal whose float32 is the stored value: 9.999999747378752e-06 -> 1e-05.

    Transformers adds it to float32 tensors, so either of the two gives the same bits.
    """
    for digits in range(1, 18):
        value = float(f"{stored:.{digits}g}")
        if struct.pack("<f", value) == struct.pack("<f", stored):
            return value
    return stored
