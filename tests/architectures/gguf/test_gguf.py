"""GGUF import: the folder is the de-quantised model, bit for bit, with its tokenizer and settings; or it is refused."""

import json
import os
import resource
import struct
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from architectures import gguf_import as gguf_import_module
from architectures.gguf_format import MAGIC, read_gguf_header
from architectures.gguf_import import import_gguf
from architectures.hub import read_config, resolve_checkpoint
from architectures.manifest import read_manifest, sha256_of_file
from architectures.shapes import Shape
from tests.architectures.conftest import FAMILY_SETTINGS, LLAMA, PIECES, perturb, split_gguf
from tests.architectures.cuts import require_same_tensors
from tests.rejections import rejects

IDS = torch.arange(3, 35)[None]
VARIANTS = {
    "llama": LLAMA,
    "qwen2": {"tie_word_embeddings": False},
    # The only widths that transformers' own GGUF import takes.
    "qwen3": {"head_dim": 128},
    "qwen3_moe": {"head_dim": 128, "moe_intermediate_size": 768},
}
BIASED = ("llama", "qwen3")  # transformers drops these biases from a GGUF file: the original is the only judge
Q8, Q4_1, FLOAT32 = (gguf.GGMLQuantizationType[name] for name in ("Q8_0", "Q4_1", "F32"))


def logits(folder: Path, **options) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, **{"dtype": "auto"} | options).eval()
    with torch.inference_mode():
        return model(IDS).logits


@pytest.fixture(scope="module", params=VARIANTS)
def source(request, make_checkpoint):
    return perturb(make_checkpoint(model_type=request.param, **VARIANTS[request.param]))


def require_same_model(imported: Path, original: Path) -> None:
    require_same_tensors(imported, original)
    assert torch.equal(logits(imported), logits(original))


@pytest.mark.parametrize(
    ("family", "settings"),
    [*VARIANTS.items(), *((name, FAMILY_SETTINGS[name]) for name in BIASED)],
    ids=[*VARIANTS, *(f"{name} biased" for name in BIASED)],
)
def test_an_unquantised_file_gives_the_original_back(write_gguf, make_checkpoint, tmp_path, family, settings):
    source = perturb(make_checkpoint(model_type=family, **settings))
    import_gguf(write_gguf(source, tmp_path / "model.gguf", matrices=FLOAT32), tmp_path / "out")
    require_same_model(tmp_path / "out", source)


@pytest.mark.parametrize("given", [0, 2])
def test_a_split_model_is_imported_by_any_of_its_parts(write_gguf, llama, tmp_path, given):
    whole = write_gguf(llama, tmp_path / "model.gguf", matrices=FLOAT32)
    parts = split_gguf(whole, 3)

    folder = resolve_checkpoint(str(parts[given]), cache=tmp_path / "cache")
    require_same_model(folder, llama)
    assert read_config(parts[given]) == read_config(whole)
    assert (read_manifest(folder) or {}).get("inputs") == {"gguf": {part.name: sha256_of_file(part) for part in parts}}

    written = (folder / "manifest.json").stat().st_mtime_ns
    assert resolve_checkpoint(str(parts[1]), cache=folder) == folder
    assert (folder / "manifest.json").stat().st_mtime_ns == written


@pytest.mark.parametrize("kind", [Q8, Q4_1])
def test_logits_are_those_of_the_dequantised_model(write_gguf, source, tmp_path, kind):
    file = write_gguf(source, tmp_path / "model.gguf", matrices=kind)
    import_gguf(file, tmp_path / "out")

    expected = logits(tmp_path, gguf_file=file.name, dtype=torch.float32)
    assert torch.equal(logits(tmp_path / "out"), expected)
    assert not torch.equal(expected, logits(source))


GEMMA3 = {"head_dim": 32, "sliding_window": 8, "num_hidden_layers": 7, "query_pre_attn_scalar": 32}
SCALED = {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}


@pytest.mark.parametrize("scaled", [False, True])
def test_gemma_3_has_windows_and_two_rotary_bases(write_gguf, make_checkpoint, tmp_path, scaled):
    """Its full-attention layer is the sixth; norms are stored with 1 added, queries scaled by depth."""
    full = {"rope_type": "linear", "factor": 8.0} if scaled else {"rope_type": "default"}
    local = {"rope_type": "default", "rope_theta": 20000.0 if scaled else 10000.0}
    rope = {"full_attention": full | {"rope_theta": 1e6}, "sliding_attention": local}
    source = perturb(make_checkpoint(model_type="gemma3_text", rope_parameters=rope, **GEMMA3))
    metadata = SCALED | {"gemma3.rope.freq_base_swa": 20000.0} if scaled else {}
    file = write_gguf(source, tmp_path / "model.gguf", matrices=FLOAT32, metadata=metadata, sentencepiece=True)
    import_gguf(file, tmp_path / "out")

    weights, expected = (load_file(folder / "model.safetensors") for folder in (tmp_path / "out", source))
    assert weights.keys() == expected.keys()
    assert torch.equal(logits(tmp_path / "out"), logits(source))
    assert read_config(file)["rope_parameters"] == read_config(source)["rope_parameters"]
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("hi")["input_ids"] == [1, PIECES.index("hi")]


def test_gemma_3_27b_scales_queries_by_the_hidden_width(write_gguf, make_checkpoint, tmp_path):
    source = make_checkpoint(model_type="gemma3_text", **GEMMA3 | {"num_hidden_layers": 62, "num_attention_heads": 2})
    assert read_config(write_gguf(source, tmp_path / "model.gguf"))["query_pre_attn_scalar"] == 64 // 2


def test_the_folder_keeps_no_trace_of_its_past(write_gguf, llama, tmp_path):
    import_gguf(write_gguf(llama, tmp_path / "model.gguf"), tmp_path / "out")

    texts = {path.name: path.read_text() for path in (tmp_path / "out").glob("*.json") if path.name != "manifest.json"}
    for name, text in texts.items():
        for word in ("quantization", "gguf", "Tiny Model", "_name_or_path", "is_local", str(tmp_path)):
            assert word not in text, name
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    model.save_pretrained(tmp_path / "again")
    require_same_model(tmp_path / "again", tmp_path / "out")


def test_config_has_the_entries_an_ordinary_one_has(write_gguf, source, tmp_path):
    import_gguf(write_gguf(source, tmp_path / "model.gguf"), tmp_path / "out")

    ordinary, imported = read_config(source), read_config(tmp_path / "out")
    assert ordinary.keys() | {"rope_theta"} == imported.keys()
    differing = {key for key in ordinary if ordinary[key] != imported[key]}
    assert differing <= {"initializer_range"}


def test_config_and_tokenizer_have_what_transformers_4_reads(write_gguf, llama, tmp_path):
    import_gguf(write_gguf(llama, tmp_path / "model.gguf"), tmp_path / "out")
    config = read_config(tmp_path / "out")
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 1e5
    loaded = AutoConfig.from_pretrained(tmp_path / "out")
    assert loaded.rope_parameters == config["rope_parameters"]
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_the_weights_can_be_written_narrower(write_gguf, llama, tmp_path):
    file = write_gguf(llama, tmp_path / "model.gguf")
    import_gguf(file, tmp_path / "wide")
    import_gguf(file, tmp_path / "narrow", dtype="bfloat16")

    wide, narrow = (load_file(tmp_path / out / "model.safetensors") for out in ("wide", "narrow"))
    assert all(torch.equal(narrow[name], wide[name].bfloat16()) for name in wide)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "narrow", dtype="auto").dtype == torch.bfloat16


def test_our_header_agrees_with_the_gguf_package(write_gguf, llama, tmp_path):
    file = write_gguf(llama, tmp_path / "model.gguf", alignment=256)
    ours, theirs = read_gguf_header(file), gguf.GGUFReader(file)

    assert ours.metadata.keys() == {key for key in theirs.fields if not key.startswith("GGUF.")}
    for key, value in ours.metadata.items():
        found = theirs.fields[key].contents()
        assert (len(value) == len(found)) if isinstance(found, list) else (value == found)
    assert {name: (tensor.size, tensor.type_id, tensor.offset) for name, tensor in ours.tensors.items()} == {
        tensor.name: (tuple(reversed(tensor.shape.tolist())), tensor.tensor_type, tensor.data_offset)
        for tensor in theirs.tensors
    }


def llama_3_factors(head_dim: int, rope: dict) -> np.ndarray:
    """As llama.cpp's converter computes them: 1 for short waves, `factor` for long ones, a blend between."""
    context = rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    factors = []
    for exponent in np.arange(0, head_dim, 2, dtype=np.float64) / head_dim:
        wavelength = 2 * np.pi * rope["rope_theta"] ** exponent
        blend = np.clip((context / wavelength - low) / (high - low), 0, 1)
        factors.append(1 / ((1 - blend) / rope["factor"] + blend))
    return np.array(factors, np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama_3_rotary_factors_become_llama_3_settings(write_gguf, make_checkpoint, tmp_path, factor):
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    source = make_checkpoint(head_dim=64, rope_parameters=rope, max_position_embeddings=131072)
    factors = llama_3_factors(64, rope)
    file = write_gguf(source, tmp_path / "model.gguf", matrices=FLOAT32, tensors={"rope_freqs.weight": factors})

    import_gguf(file, tmp_path / "out")

    assert read_config(tmp_path / "out")["rope_parameters"] == rope
    require_same_model(tmp_path / "out", source)

    file = write_gguf(source, tmp_path / "odd.gguf", tensors={"rope_freqs.weight": factors * np.float32(1.5)})
    with rejects("rope_freqs.weight"):
        import_gguf(file, tmp_path / "odd")


def test_tokenizer_template_and_generation_settings_come_along(write_gguf, llama, tmp_path):
    file = write_gguf(llama, tmp_path / "model.gguf", metadata={"tokenizer.ggml.eot_token_id": 0})
    import_gguf(file, tmp_path / "out")

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("hello w").input_ids == [262, 263]
    assert tokenizer.decode([262, 263]) == "hello w"
    special = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id)
    assert special == (1, 2, 0, None)
    assert tokenizer.decode(tokenizer("hello <|im_end|> .").input_ids, skip_special_tokens=True) == "hello  ."
    messages = [{"role": "user", "content": "hi"}]
    expected = AutoTokenizer.from_pretrained(llama).apply_chat_template(messages, tokenize=False)
    assert tokenizer.apply_chat_template(messages, tokenize=False) == expected
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert (generation["bos_token_id"], generation["eos_token_id"], generation["pad_token_id"]) == (1, [2, 0], 0)


def test_the_beginning_token_is_added_if_the_file_says_so(write_gguf, llama, tmp_path):
    plain = write_gguf(llama, tmp_path / "plain.gguf")
    marked = write_gguf(llama, tmp_path / "marked.gguf", metadata={"tokenizer.ggml.add_bos_token": True})
    for file in (plain, marked):
        import_gguf(file, tmp_path / file.stem)

    ids = {stem: AutoTokenizer.from_pretrained(tmp_path / stem)("hello").input_ids for stem in ("plain", "marked")}

    assert ids == {"plain": [262], "marked": [1, 262]}


@pytest.mark.parametrize(
    ("added", "ids"),
    [({}, [1, 263]), ({"bos": False}, [263]), ({"bos": True, "eos": True}, [1, 263, 2]), ({"eos": True}, [1, 263, 2])],
)
def test_sentencepiece_text_begins_with_its_token_unless_the_file_says_not(write_gguf, llama, tmp_path, added, ids):
    metadata = {f"tokenizer.ggml.add_{name}_token": value for name, value in added.items()}
    file = write_gguf(llama, tmp_path / "model.gguf", sentencepiece=True, metadata=metadata)
    import_gguf(file, tmp_path / "out")

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("hi").input_ids == ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "hi"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (1, 2, 0)


@pytest.mark.parametrize(
    ("splitting", "words"),
    [("smollm", ["1", "0", "ĊĊ", "2", ",", "Ġ", "5"]), ("gpt-2", ["10", "Ċ", "Ċ", "2", ",", "Ġ5"])],
)
def test_where_digits_stand_apart_the_spaces_before_them_stay_together(write_gguf, llama, tmp_path, splitting, words):
    import_gguf(write_gguf(llama, tmp_path / "model.gguf", splitting=splitting), tmp_path / "out")
    backend = AutoTokenizer.from_pretrained(tmp_path / "out").backend_tokenizer
    assert [word for word, _ in backend.pre_tokenizer.pre_tokenize_str("10\n\n2, 5")] == words


def refused(file: Path, out: Path, *named: object) -> None:
    with rejects(*named):
        import_gguf(file, out)
    assert not list(out.parent.glob(f"{out.name}*"))


def test_another_family_is_refused_from_its_header_alone(write_gguf, llama, tmp_path):
    file = write_gguf(llama, tmp_path / "model.gguf", architecture="gemma4")
    header = read_gguf_header(file)
    file.write_bytes(file.read_bytes()[: header.data_start])  # no tensor to be read

    refused(file, tmp_path / "out", "gemma4")
    with rejects("gemma4"):
        read_config(file)


def test_a_word_splitting_that_is_not_rebuilt_is_refused(write_gguf, llama, tmp_path, monkeypatch):
    refused(write_gguf(llama, tmp_path / "model.gguf", splitting="klingon"), tmp_path / "out", "klingon")
    monkeypatch.setattr(gguf_import_module, "known_splittings", lambda: {"klingon": ""})
    import_gguf(tmp_path / "model.gguf", tmp_path / "out")


def test_a_missing_or_unknown_tensor_is_named(write_gguf, llama, tmp_path):
    file = write_gguf(llama, tmp_path / "model.gguf", without=["blk.3.ffn_up.weight"])
    refused(file, tmp_path / "out", "blk.3.ffn_up.weight")
    file = write_gguf(llama, tmp_path / "model.gguf", without=["token_embd.weight"])
    refused(file, tmp_path / "out", "token_embd.weight")
    extra = {"blk.1.attn_q.lora_a": np.ones((32, 64), np.float32)}
    file = write_gguf(llama, tmp_path / "model.gguf", tensors=extra)
    refused(file, tmp_path / "out", "blk.1.attn_q.lora_a")


def test_a_tensor_of_another_size_is_named(write_gguf, llama, tmp_path):
    name = "blk.1.ffn_up.weight"
    wrong = {name: np.ones((64, 64), np.float32)}
    file = write_gguf(llama, tmp_path / "model.gguf", without=[name], tensors=wrong)
    refused(file, tmp_path / "out", name, [64, 64], [128, 64])


@pytest.mark.parametrize(
    ("key", "value"),
    [("expert_count", 8), ("rope.scaling.type", "linear"), ("rope.dimension_count", 8), ("attention.value_length", 8)],
)
def test_entries_that_would_change_the_model_are_refused(write_gguf, llama, tmp_path, key, value):
    file = write_gguf(llama, tmp_path / "model.gguf", metadata={f"llama.{key}": value})
    refused(file, tmp_path / "out", f"llama.{key}={value} ")


def test_a_part_that_is_truncated_missing_or_of_another_model_is_named(write_gguf, llama, tmp_path):
    parts = split_gguf(write_gguf(llama, tmp_path / "model.gguf"), 3)
    whole = parts[1].read_bytes()
    parts[1].write_bytes(whole[:-64])
    refused(parts[0], tmp_path / "out", parts[1])
    parts[1].write_bytes(whole)
    moved = parts[1].rename(tmp_path / "other.gguf")
    refused(parts[2], tmp_path / "out", parts[1])
    refused(moved, tmp_path / "out", moved, "split.count")
    parts[1].write_bytes(parts[2].read_bytes())
    refused(parts[0], tmp_path / "out", parts[1], "split.no")
    parts[1].write_bytes((tmp_path / "model.gguf").read_bytes())  # repeats every tensor
    refused(parts[0], tmp_path / "out", parts[1])


def test_harmless_entries_are_accepted(write_gguf, llama, tmp_path):
    metadata = {"llama.rope.scaling.type": "none", "llama.vocab_size": 264, "llama.rope.dimension_count": 16}
    file = write_gguf(llama, tmp_path / "model.gguf", metadata=metadata)
    assert Shape.from_config(read_config(file)) == Shape.from_config(read_config(llama))


# Files that are damaged, foreign or hostile are refused with one message, in bounded time and memory

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
CODES = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q"}
ENTRIES = {
    "general.architecture": (STRING, "llama"),
    "llama.context_length": (U32, 512),
    "llama.embedding_length": (U32, 64),
    "llama.block_count": (U32, 4),
    "llama.feed_forward_length": (U32, 128),
    "llama.attention.head_count": (U32, 4),
    "llama.attention.head_count_kv": (U32, 2),
    "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
    "llama.rope.freq_base": (F32, 10000.0),
    "tokenizer.ggml.eos_token_id": (U32, 2),
}
MANY = struct.pack("<IQ", STRING, 2**62)


def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key, kind, value):
    if kind == STRING:
        data = text(value)
    elif kind == ARRAY:
        data = struct.pack(f"<IQ{len(value)}I", U32, len(value), *value)
    else:
        data = struct.pack(CODES[kind], value)
    return text(key) + struct.pack("<I", kind) + data


def tensor(name, sizes=(64, 264), type_id=0, offset=0, *, axes=None):
    count = len(sizes) if axes is None else axes
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", count, *sizes, type_id, offset)


def build(changes=(), *, tensors=(("token_embd.weight",),), more=b"", num_tensors=None, num_entries=None, version=3):
    """The bytes of a header with some entries changed, and of nothing behind it."""
    entries = {**ENTRIES, **dict(changes)}
    body = b"".join(entry(key, *value) for key, value in entries.items()) + more
    listed = b"".join(tensor(*one) if isinstance(one, tuple) else one for one in tensors)
    num_tensors, num_entries = num_tensors or len(tensors), num_entries or len(entries)
    return MAGIC + struct.pack("<IQQ", version, num_tensors, num_entries) + body + listed


@pytest.fixture
def file(tmp_path):
    """Where a file is to be."""
    return tmp_path / "model.gguf"


WRONG = [  # values as such are config.json's, which are tried one by one in families/test_config_entries.py
    *(
        ("llama.block_count", value)
        for value in ((U32, 0), (I32, -1), (U64, 10**12), (F32, 4.0), (STRING, "4"), (ARRAY, [4, 4]), (BOOL, True))
    ),
    *((f"llama.{key}", (U32, 0)) for key in ("context_length", "attention.head_count", "attention.key_length")),
    ("llama.rope.freq_base", (F32, float("nan"))),
    ("tokenizer.ggml.eos_token_id", (U32, 264)),
    ("tokenizer.ggml.eot_token_id", (STRING, "</s>")),
    *(("general.alignment", value) for value in ((U32, 0), (STRING, "32"), (I32, -32), (U64, 2**62))),
    *(("general.architecture", value) for value in ((U32, 3), (ARRAY, [1]), (STRING, "gemma4"))),
]


@pytest.mark.parametrize(("key", "value"), WRONG, ids=lambda value: str(value)[:40])
def test_an_entry_that_no_model_has_is_refused_by_its_name(file, key, value):
    file.write_bytes(build({key: value}))
    with rejects("model.gguf", key.split(".")[-1]) as refused:
        read_config(file)
    assert len(str(refused.value)) < 500


HOSTILE = {
    "2^62 entries": build(num_entries=2**62),
    "2^62 tensors": build(num_tensors=2**62),
    "a name of 2^62 bytes": build(more=struct.pack("<Q", 2**62), num_entries=len(ENTRIES) + 1),
    "a text of 2^62 bytes": build(more=text("a") + struct.pack("<IQ", STRING, 2**62), num_entries=len(ENTRIES) + 1),
    "2^62 texts": build(more=text("a") + struct.pack("<I", ARRAY) + MANY, num_entries=len(ENTRIES) + 1),
    "2^62 numbers": build(more=text("a") + struct.pack("<IIQ", ARRAY, U32, 2**62), num_entries=len(ENTRIES) + 1),
    "arrays in arrays": build(more=text("a") + struct.pack("<IIQ", ARRAY, ARRAY, 9), num_entries=len(ENTRIES) + 1),
    "an unknown type": build(more=text("a") + struct.pack("<I", 77), num_entries=len(ENTRIES) + 1),
    "no UTF-8": build({"general.name": (STRING, b"\xff\xfe")}),
    "an entry twice": build(more=entry("llama.block_count", U32, 9), num_entries=len(ENTRIES) + 1),
    "a tensor twice": build(tensors=(("token_embd.weight",), ("token_embd.weight",))),
    "2^31 axes": build(tensors=(tensor("token_embd.weight", axes=2**31),)),
    "no axes": build(tensors=(("token_embd.weight", ()),)),
    "vocabulary of 2^62": build(tensors=(("token_embd.weight", (64, 2**62)),)),
    "big-endian": build(version=3 << 24),
    "cut": build()[:-40],
    "empty": b"",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("followed_by", [0, 2 << 30], ids=["", "2 GB of nothing"])
def test_counts_and_lengths_are_not_believed(file, data, followed_by):
    file.write_bytes(data)
    os.truncate(file, len(data) + followed_by)
    start_s, memory_kib = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with rejects("model.gguf"):
        read_config(file)
    assert time.monotonic() - start_s < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_kib < 256 * 1024


@pytest.mark.parametrize(
    "fields", [{"offset": 0}, {"offset": 10**9}, {"offset": 2**63}, {"type_id": 77}, {"type_id": 2**31}, {"type_id": 0}]
)
def test_tensors_that_overlap_or_end_outside_are_refused(write_gguf, llama, tmp_path, file, fields):
    data, name = bytearray(write_gguf(llama, tmp_path / "sound.gguf").read_bytes()), text("blk.1.attn_q.weight")
    place = data.index(name) + len(name) + 4 + 8 * 2  # behind the name, the number of axes and the axes
    type_id, offset = struct.unpack_from("<IQ", data, place)
    struct.pack_into("<IQ", data, place, fields.get("type_id", type_id), fields.get("offset", offset))
    file.write_bytes(data)
    with rejects("model.gguf"):
        import_gguf(file, tmp_path / "out")
    assert not (tmp_path / "out").exists()
