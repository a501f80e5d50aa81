"""GGUF files that are damaged, foreign or hostile are refused with one message, in bounded time and memory."""

import os
import resource
import struct
import time

import pytest

from architectures.gguf_format import MAGIC
from architectures.gguf_import import import_gguf
from architectures.hub import read_config
from tests.rejections import rejects

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
