"""GGUF files that are refused, before anything is written: nothing unknown is dropped, and nothing is guessed."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from architectures import gguf_import as gguf_import_module
from architectures.errors import UserError
from architectures.gguf_format import read_gguf_header
from architectures.gguf_import import import_gguf
from architectures.shapes.shape import Shape
from architectures.targets.target import read_config

Q8 = gguf.GGMLQuantizationType.Q8_0


def refused(file: Path, out: Path, message: str) -> None:
    with pytest.raises(UserError, match=message):
        import_gguf(file, out)
    assert not list(out.parent.glob(f"{out.name}*"))


def test_another_family_is_refused_from_its_header_alone(write_gguf, llama, tmp_path):
    file = write_gguf(llama, tmp_path / "model.gguf", architecture="gemma3")
    header = read_gguf_header(file)
    file.write_bytes(file.read_bytes()[: header.data_start])  # no tensor to be read

    refused(
        file, tmp_path / "out", r"general\.architecture is 'gemma3', not of the LLaMA family\. .*llama, qwen2, qwen3"
    )
    with pytest.raises(UserError, match="gemma3"):
        read_config(file)


def test_a_word_splitting_that_is_not_rebuilt_is_refused(write_gguf, llama, tmp_path, monkeypatch):
    refused(write_gguf(llama, tmp_path / "model.gguf", splitting="klingon"), tmp_path / "out", "pre=klingon, a way")
    monkeypatch.setattr(gguf_import_module, "known_splittings", lambda: {"klingon": ""})
    import_gguf(tmp_path / "model.gguf", tmp_path / "out")


@pytest.mark.parametrize("fraction", [0.99, 0.5, 0.1, 0.02])
def test_a_truncated_file_is_refused(write_gguf, llama, tmp_path, fraction):
    file = write_gguf(llama, tmp_path / "model.gguf")
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * fraction)])
    refused(file, tmp_path / "out", r"model\.gguf: (damaged or cut short inside the header|cut short inside )")


def test_every_truncation_of_the_header_is_refused(write_gguf, llama, tmp_path):
    file = write_gguf(llama, tmp_path / "model.gguf")
    header = file.read_bytes()[:900]
    for length in range(0, 900, 7):
        file.write_bytes(header[:length])
        with pytest.raises(UserError, match=r"model\.gguf: "):
            read_gguf_header(file)


def test_what_is_no_gguf_is_refused(tmp_path):
    file = tmp_path / "model.gguf"
    refused(file, tmp_path / "out", "model.gguf: no such file")
    file.write_bytes(b"GGUF")
    refused(file, tmp_path / "out", "4 bytes are no GGUF file")
    file.write_bytes(b"PK" + bytes(100))
    refused(file, tmp_path / "out", r"not a GGUF file \(it starts with b'PK")
    file.write_bytes(b"GGUF" + struct.pack(">I", 3) + bytes(100))
    refused(file, tmp_path / "out", "GGUF version 50331648 is not supported")
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sI", 1, b"k", 99) + bytes(8))
    refused(file, tmp_path / "out", "unknown value type 99")
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**64 - 9) + bytes(8))
    refused(file, tmp_path / "out", "damaged or cut short inside the header")


def test_a_missing_or_unknown_tensor_is_named(write_gguf, llama, tmp_path):
    file = write_gguf(llama, tmp_path / "model.gguf", without=["blk.3.ffn_up.weight"])
    refused(file, tmp_path / "out", r"blk\.3\.ffn_up\.weight is missing")
    file = write_gguf(llama, tmp_path / "model.gguf", without=["token_embd.weight"])
    refused(file, tmp_path / "out", r"token_embd\.weight is missing")
    extra = {"blk.1.attn_q.lora_a": np.ones((32, 64), np.float32)}
    file = write_gguf(llama, tmp_path / "model.gguf", tensors=extra)
    refused(file, tmp_path / "out", r"blk\.1\.attn_q\.lora_a is not a tensor of llama, and dropping it")


def test_a_tensor_of_another_size_is_named(write_gguf, llama, tmp_path):
    name = "blk.1.ffn_up.weight"
    wrong = {name: np.ones((64, 64), np.float32)}
    file = write_gguf(llama, tmp_path / "model.gguf", without=[name], tensors=wrong)
    refused(file, tmp_path / "out", r"blk\.1\.ffn_up\.weight has size \[64, 64\], the header makes it \[128, 64\]")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.expert_count": 8}, r"llama\.expert_count=8 is not carried over"),
        ({"llama.rope.scaling.type": "linear"}, r"llama\.rope\.scaling\.type=linear is not carried over"),
        ({"llama.rope.dimension_count": 8}, r"llama\.rope\.dimension_count=8 differs from the head width 16"),
        ({"llama.attention.value_length": 8}, r"llama\.attention\.value_length=8 differs from the head width 16"),
    ],
)
def test_entries_that_would_change_the_model_are_refused(write_gguf, llama, tmp_path, metadata, message):
    refused(write_gguf(llama, tmp_path / "model.gguf", metadata=metadata), tmp_path / "out", message)


def test_harmless_entries_are_accepted(write_gguf, llama, tmp_path):
    metadata = {"llama.rope.scaling.type": "none", "llama.vocab_size": 264, "llama.rope.dimension_count": 16}
    file = write_gguf(llama, tmp_path / "model.gguf", metadata=metadata)
    assert Shape.from_config(read_config(file)) == Shape.from_config(read_config(llama))


def test_an_unknown_quantisation_is_refused(write_gguf, llama, tmp_path):
    file = write_gguf(llama, tmp_path / "model.gguf", matrices=Q8)
    data = file.read_bytes()
    place = data.index(b"blk.0.attn_q.weight") + len(b"blk.0.attn_q.weight") + 4 + 16
    assert struct.unpack_from("<I", data, place) == (8,)
    file.write_bytes(data[:place] + struct.pack("<I", 77) + data[place + 4 :])
    refused(file, tmp_path / "out", r"blk\.0\.attn_q\.weight has the unknown quantisation type 77")


def test_only_an_earlier_import_is_replaced(write_gguf, llama, tmp_path):
    file = write_gguf(llama, tmp_path / "model.gguf")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    with pytest.raises(UserError, match=r"exists, is not empty and holds no manifest\.json"):
        import_gguf(file, tmp_path / "out")
    (tmp_path / "out" / "thesis.tex").unlink()
    import_gguf(file, tmp_path / "out")
    import_gguf(file, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["out"]
