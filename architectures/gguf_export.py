"""Export a checkpoint directory to a GGUF file: metadata, then each tensor reordered for llama.cpp and quantised."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gguf import GGML_QUANT_SIZES, GGML_QUANT_VERSION, GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType
from gguf.constants import GGUFValueType
from gguf.quants import quantize
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from architectures.checkpoint import open_weights, require_tensors
from architectures.console import track
from architectures.convert import read_small_draft, write_whole
from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.families.family import Gguf
from architectures.files import partial_path, require_space
from architectures.gguf_format import CONVERTER, GgufKind, gguf_architecture
from architectures.gguf_import import (
    ROPE_FACTORS,
    gguf_names,
    in_row_order,
    known_splittings,
    open_tokenizer,
    rope_factors,
    stored_bytes,
)
from architectures.hub import read_config
from architectures.pruning.prune import require_numbers
from architectures.shapes import Shape, checkpoint_tensors
from architectures.target_files import read_generation_settings
from architectures.vocabulary import BYTE_NAMES

F32, F16 = GGMLQuantizationType.F32, GGMLQuantizationType.F16
VALUE_TYPES = {int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32, str: GGUFValueType.STRING}
MOST_F16 = 65504.0  # largest F16 value, which also limits the scale of a quantised block


def quantisation(size: tuple[int, ...], kind: GgufKind) -> GGMLQuantizationType:
    """Return the quantisation type of a tensor.

    Vectors stay in F32, as llama.cpp requires; a matrix whose rows are no whole blocks is F16. The head of a draft is
    most of what a step reads, so it is not kept in more bits, as in llama.cpp's own files (docs/benchmarks.md).
    """
    if len(size) == 1:
        return F32
    wanted = GGMLQuantizationType[kind.upper()]
    return F16 if size[-1] % GGML_QUANT_SIZES[wanted][0] else wanted


def rope_entries(rope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries below `<architecture>.rope.`; the factors of llama3 are a tensor instead."""
    entries: dict[str, Any] = {"freq_base": float(rope["rope_theta"])}
    kind = rope.get("rope_type", "default")
    if kind in ("linear", "yarn"):
        entries |= {"scaling.type": kind, "scaling.factor": float(rope["factor"])}
    if kind == "yarn" and rope.get("original_max_position_embeddings") is not None:
        entries["scaling.original_context_length"] = rope["original_max_position_embeddings"]
    return entries


# Steps of a pre-tokenizer, as `splitting_step` writes them
WORDS, BYTES = ("ByteLevel", "words"), ("ByteLevel", "bytes")
DIGITS = ("Digits", "each")
BY_PARTS = {(WORDS,): "gpt-2", (DIGITS, WORDS): "smollm"}
# Names in transformers' table of patterns, by ignore_merges (a word that is a token stays whole whatever the merges):
# llama.cpp infers this only from the name.
NAMES = {False: ("qwen2", "gpt-4o", "smaug-bpe"), True: ("llama-bpe", "tekken")}


def splitting_name(tokenizer: Mapping[str, Any]) -> str | None:
    """Return llama.cpp's name for the pre-tokenizer of a byte-level tokenizer.json; None if no known name matches."""
    parts = tuple(splitting_step(part) for part in flattened(tokenizer.get("pre_tokenizer")))
    keeps_words = bool(tokenizer["model"].get("ignore_merges"))
    if parts in BY_PARTS and not keeps_words:
        return BY_PARTS[parts]
    if len(parts) != 2 or parts[0][0] != "Split" or parts[1] != BYTES:
        return None
    patterns = known_splittings()
    return next((name for name in NAMES[keeps_words] if patterns.get(name) == parts[0][1]), None)


def flattened(part: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if part is None:
        return []
    inner = part.get("pretokenizers", part.get("normalizers")) if part["type"] == "Sequence" else None
    return [part] if inner is None else [step for each in inner for step in flattened(each)]


def splitting_step(part: Mapping[str, Any]) -> tuple[str, str]:
    """Return a pre-tokenizer step as a comparable pair; an unknown step gets a pair that matches no name."""
    if part["type"] == "ByteLevel" and not part.get("add_prefix_space"):
        return WORDS if part.get("use_regex", True) else BYTES
    if part["type"] == "Digits" and part.get("individual_digits"):
        return DIGITS
    # Removing all matches of the inverse equals isolating the matches, for patterns that match all text.
    isolates = [("Isolated", False), ("Removed", True)]
    if part["type"] == "Split" and (part["behavior"], bool(part.get("invert"))) in isolates:
        return "Split", part["pattern"].get("Regex", "")
    return "unknown", ""


SPACE = "▁"
PREPEND = {"type": "Prepend", "prepend": SPACE}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
BELOW_ALL = -1e4  # for pieces that no merge makes; llama.cpp never reads their score


def piece_scores(tokens: Sequence[str], merges: Sequence[str]) -> list[float] | None:
    """Return a score for each token with which llama.cpp merges in the order of `merges`; None if none exist.

    llama.cpp joins the pair whose result has the highest score, so the n-th distinct result gets -n. This requires all
    merges with the same result to be adjacent.
    """
    order: dict[str, int] = {}
    last = None
    for merge in merges:
        whole = merge.replace(" ", "")
        if whole != last and whole in order:
            return None
        order.setdefault(whole, len(order))
        last = whole
    return [-float(order[token]) if token in order else BELOW_ALL for token in tokens]


def begins_with_space(tokenizer: Mapping[str, Any]) -> bool | None:
    """Return True if a space is prepended to the text; None if the handling of spaces is unknown."""
    normalizer, splitter = flattened(tokenizer.get("normalizer")), flattened(tokenizer.get("pre_tokenizer"))
    if not splitter and normalizer in ([PREPEND, REPLACE], [REPLACE]):
        return normalizer[0] == PREPEND
    if normalizer or len(splitter) != 1 or splitter[0]["type"] != "Metaspace":
        return None
    space = splitter[0]
    if space.get("replacement") != SPACE or space.get("split", True):
        return None
    return {"always": True, "first": True, "never": False}.get(space.get("prepend_scheme", "always"))


COPY_TOKENIZER = "Copy the target's tokenizer files there."
SPECIAL_IDS = {"bos_token_id": "bos", "eos_token_id": "eos", "unk_token_id": "unknown", "pad_token_id": "padding"}
PROBE = "a"


@dataclass(frozen=True, kw_only=True)
class GgufVocabulary:
    """The `tokenizer.*` entries of a GGUF file.

    Attributes:
        model: "gpt2" for byte-level BPE, "llama" for SentencePiece.
        splitting: `tokenizer.ggml.pre`, byte-level only.
        scores: Merge priorities, SentencePiece only.
        flags: `tokenizer.ggml.add_*`.
        special_ids: `tokenizer.ggml.*_token_id`.
    """

    model: str
    tokens: Sequence[str]
    types: Sequence[TokenType]
    splitting: str | None = None
    merges: Sequence[str] = ()
    scores: Sequence[float] = ()
    flags: Mapping[str, bool] = field(default_factory=dict)
    special_ids: Mapping[str, int] = field(default_factory=dict)
    chat_template: str | None = None


def read_vocabulary(folder: Path, rows: int) -> GgufVocabulary:
    """Read the tokenizer of a checkpoint directory, for a model with `rows` embedding rows.

    Ids without a token are padding and never generated; llama.cpp requires a string for them too.

    Raises:
        UserError: If there is no tokenizer, llama.cpp does not support its type, or it has more tokens than `rows`.
    """
    tokenizer = open_tokenizer(AutoTokenizer, folder, COPY_TOKENIZER)
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    model = described["model"]
    texts = {id_: text for text, id_ in tokenizer.get_vocab().items()}
    if max(texts) >= rows:
        raise UserError(
            f"{folder}: its tokenizer has ids up to {max(texts)}, but its embedding {rows} rows. {COPY_TOKENIZER}"
        )
    if model["type"] != "BPE":
        raise UserError(f"{folder}: tokenizer {model['type']} is not byte-level or SentencePiece BPE. {CONVERTER}")
    is_pieces = bool(model.get("byte_fallback"))  # bytes encode unknown characters, as in Llama 2
    added = tokenizer.added_tokens_decoder

    def type_of(id_: int) -> TokenType:
        if id_ not in texts:
            return TokenType.UNUSED
        if is_pieces and texts[id_] == model.get("unk_token"):
            return TokenType.UNKNOWN
        if id_ in added:
            return TokenType.CONTROL if added[id_].special else TokenType.USER_DEFINED
        return TokenType.BYTE if is_pieces and texts[id_] in BYTE_NAMES else TokenType.NORMAL

    template = tokenizer.chat_template
    common: dict[str, Any] = {
        "tokens": [texts.get(id_, f"[PAD{id_}]") for id_ in range(rows)],
        "types": [type_of(id_) for id_ in range(rows)],
        "special_ids": special_ids(folder, tokenizer),
        "chat_template": template.get("default") if isinstance(template, dict) else template,
    }
    flags = framing(folder, tokenizer)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    if not is_pieces:
        splitting = require_splitting(folder, described)
        if not merges:
            raise UserError(f"{folder}: its tokenizer has no merges, which llama.cpp requires. {COPY_TOKENIZER}")
        return GgufVocabulary(model="gpt2", splitting=splitting, merges=merges, flags=flags, **common)
    scores, with_space = piece_scores(common["tokens"], merges), begins_with_space(described)
    if scores is None or with_space is None:
        reason = "has merges that scores cannot express" if scores is None else "handles spaces differently"
        raise UserError(f"{folder}: its SentencePiece tokenizer {reason}. {CONVERTER}")
    return GgufVocabulary(model="llama", scores=scores, flags=flags | {"space_prefix": with_space}, **common)


def require_splitting(folder: Path, described: Mapping[str, Any]) -> str:
    """Return llama.cpp's name for the pre-tokenizer of a byte-level tokenizer; UserError if it is unknown."""
    others = [part["type"] for part in flattened(described.get("normalizer")) if part["type"] != "NFC"]
    if others:  # NFC changes hardly any text, and llama.cpp skips it for the target too
        raise UserError(f"{folder}: its tokenizer applies {others[0]}, which llama.cpp does not. {CONVERTER}")
    name = splitting_name(described)
    if name is None:
        kinds = ", ".join(part["type"] for part in flattened(described.get("pre_tokenizer"))) or "nothing"
        raise UserError(
            f"{folder}: the pre-tokenizer ({kinds}) has no known llama.cpp equivalent "
            f"with transformers {transformers.__version__}. {CONVERTER}"
        )
    return name


def framing(folder: Path, tokenizer: PreTrainedTokenizerBase) -> dict[str, bool]:
    """Return flags for BOS and EOS: True if the tokenizer adds them; UserError if it adds anything else."""
    bare = tokenizer(PROBE, add_special_tokens=False)["input_ids"]
    framed = tokenizer(PROBE)["input_ids"]
    for begins in (False, True):
        for ends in (False, True):
            before, after = [tokenizer.bos_token_id] * begins, [tokenizer.eos_token_id] * ends
            if framed == [*before, *bare, *after]:
                return {"bos_token": begins, "eos_token": ends}
    raise UserError(
        f"{folder}: its tokenizer encodes {PROBE!r} as {framed}; llama.cpp adds only bos_token and "
        f"eos_token. {COPY_TOKENIZER}"
    )


def special_ids(folder: Path, tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Return special ids by their GGUF names; a single additional stop token becomes end-of-turn (eot)."""
    ids = {name: getattr(tokenizer, key) for key, name in SPECIAL_IDS.items()}
    stops = read_generation_settings(folder).get("eos_token_id")
    others = [id_ for id_ in stops if id_ != ids["eos"]] if isinstance(stops, list) else []
    if len(others) == 1:  # if there are several, llama.cpp finds the known ones by their strings
        ids["eot"] = others[0]
    return {name: id_ for name, id_ in ids.items() if id_ is not None}


@dataclass(frozen=True)
class GgufFile:
    """An exported GGUF file.

    Attributes:
        fallen_back: Tensors stored as F16, as their rows are no whole blocks.
    """

    path: Path
    num_bytes: int
    fallen_back: list[str]


def export_gguf(folder: Path, out: Path, kind: GgufKind, *, name: str) -> GgufFile:
    """Write a checkpoint directory as a GGUF file, atomically.

    A reduced output head is first expanded to the target's vocabulary (architectures/convert.py): llama.cpp needs a
    row for every id.

    Args:
        folder: Hugging Face directory of a family with a `gguf` entry.
        out: An existing file is replaced.
        kind: Of the matrices.
        name: Model name in the metadata.

    Raises:
        UserError: If llama.cpp would compute the model or tokenize text differently, a weight is not finite or exceeds
            F16, or the disk has too little space.
    """
    if not Shape.from_config(read_config(folder), where=str(folder / "config.json")).head_vocab:
        return write_gguf(folder, out, kind, name)
    with tempfile.TemporaryDirectory(prefix=".grown-", dir=out.parent) as grown:
        write_whole(read_small_draft(folder), Path(grown))
        return write_gguf(Path(grown), out, kind, name)


def write_gguf(folder: Path, out: Path, kind: GgufKind, name: str) -> GgufFile:
    """Write a directory whose head has a row for every id; holds one tensor in memory at a time."""
    # Check everything about the directory except the values of its weights.
    shape = Shape.from_config(read_config(folder), where=str(folder / "config.json"))
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    gguf, sizes = gguf_architecture(folder, shape, config), checkpoint_tensors(shape)
    weights = open_weights(folder)
    require_tensors(weights, sizes, ignored=FAMILIES[shape.family].ignored_suffixes)
    vocabulary = read_vocabulary(folder, shape.vocab)

    # Names, quantisation types and sizes of the tensors in the file.
    names = {stored: name for name, stored in gguf_names(shape).items()}
    stored = {gguf_name: sizes[name] for gguf_name, name in names.items()}
    factors = None
    if config.rope_parameters.get("rope_type") == "llama3":
        factors = rope_factors(config.rope_parameters, shape.head_dim)
        stored[ROPE_FACTORS] = factors.shape
    types = {tensor: quantisation(size, kind) for tensor, size in stored.items()}
    num_bytes = {tensor: stored_bytes(stored[tensor], types[tensor]) for tensor in stored}
    require_space(out, sum(num_bytes.values()))

    def read(gguf_name: str) -> Tensor:
        if gguf_name == ROPE_FACTORS:
            return torch.from_numpy(factors)
        name = names[gguf_name]
        weight = require_numbers(weights, name).float()
        if weight.abs().max() > MOST_F16:
            raise UserError(
                f"{weights.files[name]}: {name} contains {weight.abs().max():g}, above the F16 maximum ({MOST_F16:g}). "
                "Serve the directory itself with transformers or vLLM."
            )
        return in_row_order(gguf, gguf_name, weight, shape, (2, -1))

    partial = partial_path(out)
    writer = GGUFWriter(partial, gguf.name)
    try:
        writer.add_type("model")
        writer.add_name(name)
        writer.add_file_type(LlamaFileType[f"MOSTLY_{kind.upper()}"])
        writer.add_quantization_version(GGML_QUANT_VERSION)
        for key, value in model_entries(gguf, shape, config).items():
            writer.add_key_value(f"{gguf.name}.{key}", value, VALUE_TYPES[type(value)])
        add_vocabulary(writer, vocabulary)
        for tensor, size in stored.items():
            writer.add_tensor_info(tensor, size, np.dtype(np.float32), num_bytes[tensor], raw_dtype=types[tensor])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in track(list(stored), description=f"writing {partial}", total=len(stored)):
            writer.write_tensor_data(quantize(read(tensor).contiguous().numpy(), types[tensor]))
        writer.close()
        partial.replace(out)
    finally:
        writer.close()
        partial.unlink(missing_ok=True)
    narrower = [] if kind == "f16" else [tensor for tensor, each in types.items() if each == F16]
    return GgufFile(out, out.stat().st_size, narrower)


def model_entries(gguf: Gguf, shape: Shape, config: PreTrainedConfig) -> dict[str, Any]:
    """Return the entries below the architecture's name, with head widths, so that engines need not guess them."""
    return {
        "vocab_size": shape.vocab,
        "context_length": config.max_position_embeddings,
        "embedding_length": shape.hidden,
        "block_count": shape.layers,
        "feed_forward_length": shape.intermediate,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.dimension_count": shape.head_dim,
        **{entry: float(getattr(config, key)) for key, entry in gguf.scales.items()},
        **{f"rope.{key}": value for key, value in rope_entries(config.rope_parameters).items()},
    }


def add_vocabulary(writer: GGUFWriter, vocabulary: GgufVocabulary) -> None:
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.splitting or "default")
    for name, flag in vocabulary.flags.items():
        writer.add_bool(f"tokenizer.ggml.add_{name}", flag)
    for name, id_ in vocabulary.special_ids.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", id_)
    if vocabulary.chat_template is not None:
        writer.add_chat_template(vocabulary.chat_template)
    writer.add_token_list(list(vocabulary.tokens))
    writer.add_token_types(list(vocabulary.types))
    if vocabulary.merges:
        writer.add_token_merges(list(vocabulary.merges))
    if vocabulary.scores:
        writer.add_token_scores(list(vocabulary.scores))
