"""GGUF files that are refused, before anything is written: nothing unknown is dropped, and nothing is guessed."""

from pathlib import Path

import numpy as np
import pytest

from architectures import gguf_import as gguf_import_module
from architectures.gguf_format import read_gguf_header
from architectures.gguf_import import import_gguf
from architectures.hub import read_config
from architectures.shapes import Shape
from tests.architectures.conftest import split_gguf
from tests.rejections import rejects


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


def test_a_part_that_is_missing_or_of_another_model_is_named(write_gguf, llama, tmp_path):
    parts = split_gguf(write_gguf(llama, tmp_path / "model.gguf"), 3)
    moved = parts[1].rename(tmp_path / "other.gguf")
    refused(parts[2], tmp_path / "out", parts[1])
    refused(moved, tmp_path / "out", moved, "split.count")
    parts[1].write_bytes(parts[2].read_bytes())
    refused(parts[0], tmp_path / "out", parts[1], "split.no")
    parts[1].write_bytes((tmp_path / "model.gguf").read_bytes())  # repeats every tensor
    refused(parts[0], tmp_path / "out", parts[1])


def test_a_truncated_part_is_named(write_gguf, llama, tmp_path):
    parts = split_gguf(write_gguf(llama, tmp_path / "model.gguf"), 2)
    parts[1].write_bytes(parts[1].read_bytes()[:-64])
    refused(parts[0], tmp_path / "out", parts[1])


def test_harmless_entries_are_accepted(write_gguf, llama, tmp_path):
    metadata = {"llama.rope.scaling.type": "none", "llama.vocab_size": 264, "llama.rope.dimension_count": 16}
    file = write_gguf(llama, tmp_path / "model.gguf", metadata=metadata)
    assert Shape.from_config(read_config(file)) == Shape.from_config(read_config(llama))
