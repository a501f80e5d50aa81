"""GGUF files: header, supported quantisations, and the models they can represent. No torch.

`gguf.GGUFReader` takes seconds for the token list; `widedraft check` must take less than two in total.
Source of the layout: the GGUF specification, ggml-org/ggml docs/gguf.md, versions 2 and 3.
"""

import mmap
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.families.config_entries import mistake_in, require_config
from architectures.families.family import Gguf
from architectures.files import require_regular, shown
from architectures.manifest import sha256_of_files
from architectures.shapes import Shape

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

MAGIC = b"GGUF"
MOST_HEADER_BYTES = 64 << 20  # a vocabulary of 256,000 tokens with its merges takes about 16 MB
MOST_TENSORS, MOST_ENTRIES, MOST_AXES, MOST_NAME_BYTES = 100_000, 10_000, 4, 65_535
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
PART_NAME = re.compile(r"(.*)-\d{5}-of-(\d{5})(\.gguf)", re.IGNORECASE)  # of llama.cpp's llama-gguf-split
STRING, ARRAY = 8, 9
MAX_ALIGNMENT = 65_536
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
END_OF_TURN = {"eot_token_id": "bos_token_id", "unknown_token_id": "bos_token_id"}  # each a single id
WINDOW_KEYS = {  # of families in which layers with a sliding window have a rotary base of their own
    "attention.sliding_window": "sliding_window",
    "rope.freq_base_swa": "rope_local_base_freq",
    "rope.scaling.factor": "factor",
}
# Supported values of `general.architecture`; Mistral's files are LLaMA's.
ARCHITECTURES = {family.gguf.name: (family, family.gguf) for family in reversed(FAMILIES.values()) if family.gguf}
CHECKED_KEYS = ("attention.value_length", "rope.dimension_count")  # must agree with head_dim
NEUTRAL_KEYS = ("vocab_size",)  # implied by the embedding's size
USE_ORIGINAL = "Use the original Hugging Face checkpoint as the target."


@dataclass(frozen=True)
class GgufTensor:
    """Size, type and place of one tensor."""

    size: tuple[int, ...]  # in torch's order, rows first; GGUF stores columns first
    type_id: int  # GGMLQuantizationType
    offset: int  # bytes from the start of the file
    file: Path


@dataclass(frozen=True)
class GgufHeader:
    """Header of a GGUF file, or of a split model: entries of its first part, tensors of all."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]
    data_start: int  # of the first part


def gguf_parts(file: Path) -> list[Path]:
    """Return all parts of a split model, by the name of any of them; the file itself if it is not a part."""
    match = PART_NAME.fullmatch(file.name)
    if match is None:
        return [file]
    model, count, suffix = match.groups()
    parts = [file.with_name(f"{model}-{number:05d}-of-{count}{suffix}") for number in range(1, int(count) + 1)]
    return parts if file in parts else [file]


def gguf_inputs(file: Path) -> dict[str, Any]:
    """Return the inputs of an import for its manifest: the sha256 of the file, or of each part by name."""
    parts = gguf_parts(file)
    hashes = sha256_of_files(parts, description=f"hashing {file}")
    return {"gguf": hashes[0] if len(parts) == 1 else dict(zip((part.name for part in parts), hashes, strict=True))}


def read_gguf_header(file: Path) -> GgufHeader:
    """Read metadata and tensor list of a GGUF model, in time and memory bounded whatever the header claims.

    Args:
        file: Any part, if the model is split.

    Raises:
        UserError: If a file is missing, not GGUF, of another version, or has a damaged, unbounded or truncated
            header; if the parts are not those of one model.
    """
    parts = gguf_parts(file)
    first = read_part(parts[0])
    tensors = dict(first.tensors)
    for number, part in enumerate(parts):
        header = read_part(part) if number else first
        stated = [header.metadata.get(key, default) for key, default in (("split.no", 0), ("split.count", 1))]
        if stated != [number, len(parts)] or (number and not tensors.keys().isdisjoint(header.tensors)):
            raise UserError(
                f"{part}: split.no and split.count are {shown(stated)}, but {[number, len(parts)]} by the file's name, "
                "or it repeats a tensor of an earlier part. Use all parts of one model, with the names that "
                "llama-gguf-split gave them: MODEL-00001-of-0000N.gguf."
            )
        tensors |= header.tensors
    return replace(first, tensors=tensors)


def read_part(file: Path) -> GgufHeader:
    if not file.exists():
        raise UserError(f"{file}: no such file. Pass an existing .gguf file, with all its parts.")
    require_regular(file, hint="Pass the path of a .gguf file.")
    if file.stat().st_size < 24:
        raise UserError(f"{file}: too small for a GGUF file ({file.stat().st_size} bytes). Download it again.")
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != MAGIC:
            raise UserError(f"{file}: not a GGUF file (it starts with {data[:4]!r}). Pass a .gguf file.")
        try:
            return parse_header(data, file)
        except (struct.error, UnicodeDecodeError) as error:
            raise UserError(f"{file}: damaged or truncated within the header ({error}). Download it again.") from error


def parse_header(data: mmap.mmap, file: Path) -> GgufHeader:
    cursor = Cursor(data, position=4)
    version = cursor.scalar("I")
    if version not in VERSIONS:
        raise UserError(f"{file}: GGUF version {version} is not supported. Use a little-endian file of version 2 or 3.")
    num_tensors, num_entries = cursor.count(MOST_TENSORS, "tensors"), cursor.count(MOST_ENTRIES, "entries")
    metadata: dict[str, Any] = {}
    for _ in range(num_entries):
        name = cursor.new_name(metadata)
        metadata[name] = cursor.value(cursor.scalar("I"))
    tensors: dict[str, GgufTensor] = {}
    for _ in range(num_tensors):
        name = cursor.new_name(tensors)
        num_axes = cursor.scalar("I")
        if num_axes > MOST_AXES:
            raise struct.error(f"a tensor of {num_axes} axes")
        sizes = [cursor.scalar("Q") for _ in range(num_axes)]
        tensors[name] = GgufTensor(tuple(reversed(sizes)), cursor.scalar("I"), cursor.scalar("Q"), file)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 0 < alignment <= MAX_ALIGNMENT:
        raise UserError(f"{file}: general.alignment is {shown(alignment)}. Download the file again.")
    data_start = -(-cursor.position // alignment) * alignment
    tensors = {name: replace(tensor, offset=data_start + tensor.offset) for name, tensor in tensors.items()}
    return GgufHeader(metadata, tensors, data_start)


class Cursor:
    """Reader of consecutive little-endian values, limited to the maximum size of a header."""

    def __init__(self, data: mmap.mmap, *, position: int):
        self.data = data
        self.position = position
        self.end = min(len(data), MOST_HEADER_BYTES)

    def scalar(self, code: str) -> Any:
        """Read one number or boolean, by its struct code."""
        start = self.position
        self.skip(struct.calcsize(f"<{code}"))
        return struct.unpack_from(f"<{code}", self.data, start)[0]

    def count(self, most: int, of: str) -> int:
        """Read a count, at most `most`."""
        number = self.scalar("Q")
        if number > most:
            raise struct.error(f"{number} {of}; at most {most} are supported")
        return number

    def skip(self, num_bytes: int) -> None:
        if self.position + num_bytes > self.end:
            raise struct.error(f"{num_bytes} bytes expected at {self.position}, the header ends before {self.end}")
        self.position += num_bytes

    def text(self, most_bytes: int = MOST_HEADER_BYTES) -> str:
        """Read a length-prefixed string."""
        length = self.count(most_bytes, "bytes of text")
        start = self.position
        self.skip(length)
        return self.data[start : self.position].decode("utf-8")

    def new_name(self, known: Mapping[str, Any]) -> str:
        """Read a name that is not in `known` yet."""
        name = self.text(MOST_NAME_BYTES)
        if name in known:
            raise struct.error(f"{shown(name)} occurs twice")
        return name

    def value(self, type_id: int) -> Any:
        """Read a metadata value of the given type; an array returns only its length, as a range."""
        if type_id == STRING:
            return self.text()
        if type_id != ARRAY:
            return self.scalar(scalar_code(type_id))
        item_type, length = self.scalar("I"), self.scalar("Q")
        if item_type == STRING:
            for _ in range(length):
                self.skip(self.scalar("Q"))
        else:
            self.skip(length * struct.calcsize(f"<{scalar_code(item_type)}"))
        return range(length)


def scalar_code(type_id: int) -> str:
    if type_id not in SCALARS:
        raise struct.error(f"unknown value type {type_id}")
    return SCALARS[type_id]


def gguf_config(file: Path, header: GgufHeader) -> dict[str, Any]:
    """Return the config.json entries of a GGUF header of a supported architecture.

    Raises:
        UserError: If the architecture is not supported, or an entry is missing, unknown or inconsistent.
    """
    metadata, architecture = header.metadata, header.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UserError(
            f"{file}: general.architecture {architecture!r} is not supported. "
            f"Use a GGUF file of one of: {', '.join(ARCHITECTURES)}."
        )
    (family, gguf), prefix = ARCHITECTURES[architecture], f"{architecture}."
    has_windows = family.window_pattern is not None
    stated = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    scales = {entry: name for name, entry in gguf.scales.items()}
    counts = {entry: name for name, entry in gguf.counts.items()}
    names = CONFIG_KEYS | scales | counts | (WINDOW_KEYS if has_windows else {})
    required = (*scales, *counts, "embedding_length", "attention.head_count")
    required += ("attention.sliding_window", "rope.freq_base") if has_windows else ()
    reject_entries(file, metadata, prefix, names, required=required)
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or not embedding.size:
        raise UserError(f"{file}: token_embd.weight is missing. Use a GGUF file of a complete model.")

    config = {name: stated[key] for key, name in names.items() if key in stated}
    for name in ("rms_norm_eps", "rope_theta", "rope_local_base_freq", *scales.values()):
        if name in config:
            config[name] = shortest_decimal(config[name])
    for key, name in TOKEN_KEYS.items():
        if f"tokenizer.ggml.{key}" in metadata:
            config[name] = metadata[f"tokenizer.ggml.{key}"]
    config |= {
        "model_type": family.model_type,
        "vocab_size": embedding.size[0],
        "tie_word_embeddings": "output.weight" not in header.tensors,
        **{entry: tensor in header.tensors for entry, tensor in gguf.bias_tensors.items()},
        **gguf.implied,
    }
    width = config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    for key in CHECKED_KEYS:
        if stated.get(key, width) != width:
            raise UserError(f"{file}: {prefix}{key}={stated[key]} differs from the head width {width}. {USE_ORIGINAL}")
    rotary = gguf.rotary_layers(config.get("num_hidden_layers", 0))
    if rotary is not None:
        config["no_rope_layers"] = rotary
    config |= window_entries(config, gguf) if has_windows else {}
    require_config(config, str(file))
    return config


def window_entries(config: dict[str, Any], gguf: Gguf) -> dict[str, Any]:
    """Replace the values of WINDOW_KEYS: layers with a window have their own rotary base, and no scaling."""
    local, factor = config.pop("rope_local_base_freq", 10000.0), config.pop("factor", None)
    scaling = {"rope_type": "default"} if factor is None else {"rope_type": "linear", "factor": factor}
    by_hidden = config.get("num_hidden_layers") == gguf.hidden_scale_layers
    width = config["hidden_size"] // config["num_attention_heads"] if by_hidden else config["head_dim"]
    return {
        "query_pre_attn_scalar": width,
        "rope_parameters": {
            "full_attention": scaling | {"rope_theta": config["rope_theta"]},
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
    }


def reject_entries(
    file: Path, metadata: Mapping[str, Any], prefix: str, names: Mapping[str, str], *, required: Sequence[str]
) -> None:
    """Raise UserError for a model entry that is unknown, missing or of another type than in config.json.

    A dropped entry could change the model's output, and so could one that engines interpret differently.

    Args:
        names: Entry without the prefix -> its name in config.json.
        required: Entries without the prefix.
    """
    known = {f"{prefix}{key}" for key in (*names, *CHECKED_KEYS, *NEUTRAL_KEYS)}
    scaling = f"{prefix}rope.scaling.type", "linear" if "rope.scaling.factor" in names else "none"
    for key, value in metadata.items():
        if key.startswith(prefix) and key not in known and (key, value) != scaling:
            raise UserError(f"{file}: {key}={value} has no equivalent in Hugging Face configs. {USE_ORIGINAL}")
    for key in required:
        if f"{prefix}{key}" not in metadata:
            raise UserError(f"{file}: {prefix}{key} is missing. {USE_ORIGINAL}")
    kinds = {f"{prefix}{key}": name for key, name in names.items()}
    kinds |= {f"tokenizer.ggml.{key}": name for key, name in (TOKEN_KEYS | END_OF_TURN).items()}
    for key, name in kinds.items():
        if key in metadata and (mistake := mistake_in({name: metadata[key]})) is not None:
            raise UserError(f"{file}: {key}: {mistake}. Download the file again.")


def shortest_decimal(stored: float) -> float:
    """Return the shortest decimal whose float32 is the stored value: 9.999999747378752e-06 -> 1e-05.

    Transformers adds it to float32 tensors, so both give the same bits.
    """
    for digits in range(1, 18):
        value = float(f"{stored:.{digits}g}")
        if struct.pack("<f", value) == struct.pack("<f", stored):
            return value
    return stored


GgufKind = Literal["f16", "q8_0", "q4_0"]


def file_name(model: str, kind: GgufKind) -> str:
    """Return a model's file name, from which llama.cpp infers the quantisation."""
    return f"{model}-{kind.upper()}.gguf"


CONVERTER = "Convert the directory with llama.cpp's convert_hf_to_gguf.py."
SERVE_AS_IT_IS = "Serve the directory itself with transformers or vLLM."
ROPE_TYPES = {  # the settings llama.cpp supports for each type, in addition to rope_type and rope_theta
    "default": (),
    "linear": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
NEUTRAL = {"partial_rotary_factor": 1.0, "attention_factor": None, "beta_fast": 32, "beta_slow": 1, "truncate": True}


def gguf_architecture(folder: Path, shape: Shape, config: "PreTrainedConfig") -> Gguf:
    """Return llama.cpp's counterpart of a model.

    Args:
        config: Its config.json, as transformers reads it.

    Raises:
        UserError: If llama.cpp does not support the model, or would compute it differently than transformers.
    """
    gguf = reject_other_shapes(folder, shape)
    if config.hidden_act != "silu":
        reject(folder, f"hidden_act is {config.hidden_act!r}, but llama.cpp computes {shape.family} with silu")

    # Attention in llama.cpp's layers has no sliding window.
    window = getattr(config, "sliding_window", None)
    windowed = "sliding_attention" in (getattr(config, "layer_types", None) or ["sliding_attention"])
    if window is not None and windowed and window < config.max_position_embeddings:
        reject(folder, f"the sliding window is {window} of {config.max_position_embeddings} tokens; llama.cpp has none")

    # Check that a file has entries for the rotary settings, and that llama.cpp rotates the same layers.
    rope = config.rope_parameters
    kind = rope.get("rope_type", "default")
    if kind == "llama3" and not gguf.rope_factors:
        reject(folder, f"rope_type is 'llama3', whose factors llama.cpp's {gguf.name} does not read")
    if kind not in ROPE_TYPES:
        reject(folder, f"rope_type is {kind!r}; supported are {', '.join(ROPE_TYPES)}")
    for key, value in rope.items():
        known = key in ("rope_type", "type", "rope_theta", *ROPE_TYPES[kind])
        if not known and value is not None and NEUTRAL.get(key) != value:
            reject(folder, f"rope_parameters.{key} is {value!r}, which GGUF cannot express")
    rotary = gguf.rotary_layers(shape.layers)
    if rotary is not None and list(config.no_rope_layers) != rotary:
        reject(folder, f"no_rope_layers is {config.no_rope_layers}, but llama.cpp's {gguf.name} has {rotary}")
    return gguf


def reject_other_shapes(folder: Path, shape: Shape) -> Gguf:
    """Raise UserError for a family or sizes that cannot be exported to GGUF; `folder` is for the message."""
    family = FAMILIES[shape.family]
    gguf = family.gguf
    if gguf is None or family.no_gguf:
        fact = f"model_type {shape.family} cannot be exported to GGUF: {family.no_gguf or 'not supported'}"
        hint = CONVERTER if "llama.cpp" in family.engines else SERVE_AS_IT_IS
        raise UserError(f"{folder}: {fact}. {hint}")
    query = shape.heads * shape.head_dim
    for differs, fact in (
        (gguf.query_is_hidden and query != shape.hidden, f"has hidden_size={shape.hidden} query channels, not {query}"),
        (shape.tied and not gguf.tied_head, "has an untied output head"),
        (shape.ffn_bias and not gguf.ffn_bias, "has no bias in its feed-forward (mlp_bias)"),
        (shape.qkv_bias and not gguf.attention_bias, "has no bias in its attention (attention_bias)"),
    ):
        if differs:
            reject(folder, f"llama.cpp's {gguf.name} {fact}")
    return gguf


def reject(folder: Path, fact: str) -> NoReturn:
    raise UserError(f"{folder / 'config.json'}: {fact}, so it cannot be exported to GGUF. {SERVE_AS_IT_IS}")
