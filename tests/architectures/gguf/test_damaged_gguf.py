"""GGUF files that are damaged, foreign or hostile are refused with one message, in bounded time and memory."""

import os
import resource
import struct
import time

import pytest

from architectures.errors import UserError
from architectures.gguf_format import MAGIC
from architectures.gguf_import import import_gguf
from architectures.shapes.shape import Shape
from architectures.targets.target import read_config

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
        data = (
            value
            if isinstance(value, bytes)
            else struct.pack("<IQ", U32, len(value)) + struct.pack(f"<{len(value)}I", *value)
        )
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
    counts = (
        len(tensors) if num_tensors is None else num_tensors,
        len(entries) if num_entries is None else num_entries,
    )
    return MAGIC + struct.pack("<IQQ", version, *counts) + body + listed


@pytest.fixture
def file(tmp_path):
    """Where a file is to be."""
    return tmp_path / "model.gguf"


def test_a_sound_header_is_read(file):
    file.write_bytes(build())
    shape = Shape.from_config(read_config(file))
    assert (shape.layers, shape.hidden, shape.vocab, shape.heads) == (4, 64, 264, 4)


WRONG = [
    *(
        (f"llama.{key}", value)
        for key in ("embedding_length", "block_count", "attention.head_count", "attention.head_count_kv")
        for value in ((U32, 0), (I32, -1), (U64, 10**12), (F32, 4.0), (STRING, "4"), (ARRAY, [4, 4]), (BOOL, True))
    ),
    *((f"llama.{key}", (U32, 0)) for key in ("context_length", "feed_forward_length", "attention.key_length")),
    *(
        (f"llama.{key}", value)
        for key in ("attention.layer_norm_rms_epsilon", "rope.freq_base")
        for value in ((F32, 0.0), (F32, float("nan")), (F32, float("inf")), (F32, -1.0), (STRING, "1e-5"), (ARRAY, [1]))
    ),
    *(
        (f"tokenizer.ggml.{key}_token_id", value)
        for key in ("eos", "bos", "padding", "eot")
        for value in ((I32, -2), (STRING, "</s>"), (F32, 2.0), (ARRAY, [2, 3]))
    ),
    ("tokenizer.ggml.eos_token_id", (U32, 264)),
    *(("general.alignment", value) for value in ((U32, 0), (STRING, "32"), (ARRAY, [32]), (I32, -32), (U64, 2**62))),
    *(("general.architecture", value) for value in ((U32, 3), (ARRAY, [1]), (STRING, "gemma3"))),
]


@pytest.mark.parametrize(("key", "value"), WRONG, ids=lambda value: str(value)[:40])
def test_an_entry_that_no_model_has_is_refused_by_its_name(file, key, value):
    file.write_bytes(build({key: value}))
    with pytest.raises(
        UserError, match=rf"model\.gguf: .*{key.split('.')[-1].removeprefix('padding_')}.* (must be|is) "
    ) as refused:
        read_config(file)
    assert len(str(refused.value)) < 500


HOSTILE = {
    "2^62 entries": build(num_entries=2**62),
    "2^62 tensors": build(num_tensors=2**62),
    "a million entries": build(num_entries=10**6),
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
    "vocabulary of 0": build(tensors=(("token_embd.weight", (64, 0)),)),
    "big-endian": build(version=3 << 24),
    "cut": build()[:-40],
    "empty": b"",
    "magic alone": MAGIC,
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("followed_by", [0, 2 << 30], ids=["", "2 GB of nothing"])
def test_counts_and_lengths_are_not_believed(file, data, followed_by):
    file.write_bytes(data)
    os.truncate(file, len(data) + followed_by)
    start_s, memory_kib = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=r"model\.gguf: "):
        read_config(file)
    assert time.monotonic() - start_s < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_kib < 256 * 1024


def test_a_pipe_or_a_folder_is_refused(file):
    os.mkfifo(file)
    with pytest.raises(UserError, match=r"model\.gguf: "):
        read_config(file)
    file.unlink()
    file.mkdir()
    with pytest.raises(UserError, match=r"model\.gguf: "):
        read_config(file)


def place_of(data, name, axes):
    """Where the type and the offset of a tensor stand."""
    return data.index(text(name)) + len(text(name)) + 4 + 8 * axes


def edited(source, file, name, axes, **fields):
    data = bytearray(source.read_bytes())
    place = place_of(data, name, axes)
    type_id, offset = struct.unpack_from("<IQ", data, place)
    struct.pack_into("<IQ", data, place, fields.get("type_id", type_id), fields.get("offset", offset))
    file.write_bytes(data)
    return file


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"offset": 0}, "begins inside"),
        ({"offset": 10**9}, "cut short inside"),
        ({"offset": 2**63}, "cut short inside"),
        ({"type_id": 77}, "unknown quantisation type 77"),
        ({"type_id": 2**31}, "unknown quantisation type 2147483648"),
        ({"type_id": 0}, "begins inside|cut short inside"),
    ],
)
def test_tensors_that_overlap_or_end_outside_are_refused(write_gguf, llama, tmp_path, file, fields, message):
    source = write_gguf(llama, tmp_path / "sound.gguf")
    edited(source, file, "blk.1.attn_q.weight", 2, **fields)
    with pytest.raises(UserError, match=rf"model\.gguf: .*({message})"):
        import_gguf(file, tmp_path / "out")
    assert not (tmp_path / "out").exists()
