"""Model folders that are damaged, foreign or hostile are refused with one message when they are opened for decoding."""

import json
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from architectures.errors import UserError
from architectures.hub import read_config
from architectures.shapes import Shape
from eval.models import least_parameters, load_model, load_tokenizer, require_positions
from tests.rejections import rejects

VALUES = (None, "", "a", -1, 0, 1.5, 10**12, float("nan"), True, [], {})
FREE = {  # entries that no figure depends on, or of which these values are ones a model may have
    "architectures": (None, []),
    "attention_dropout": (None, 0),
    "bos_token_id": (None, 0),
    "dtype": (None,),
    "eos_token_id": (None, 0, []),
    "head_dim": (None,),
    "pad_token_id": (None, -1, 0),
    "pretraining_tp": (None, -1, 0, 10**12),
    "rope_parameters": (None, {}),
    "tie_word_embeddings": (True,),
    "use_cache": (True,),
}


@pytest.fixture
def copy(tiny_target, tmp_path):
    """A checkpoint a test may damage."""
    return Path(shutil.copytree(tiny_target, tmp_path / "copy"))


@pytest.mark.parametrize("method", ["awq", "fp8", "compressed-tensors"])
def test_a_quantised_checkpoint_is_named_with_its_method(copy, method):
    change_config(copy, quantization_config={"quant_method": method})
    with rejects(copy / "config.json", method, "--endpoint"):
        load_model(copy, dtype="float32")


def test_a_missing_package_is_named(copy):
    change_config(copy, _attn_implementation="flash_attention_2")
    with rejects(copy / "config.json", "FlashAttention2"):
        load_model(copy, dtype="float32")


def change_config(folder, **entries):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | entries))


def open_folder(folder):
    """What check, generate and eval do with a target before they use it."""
    Shape.from_config(read_config(folder), where=str(folder / "config.json"))
    require_positions(folder, 40)
    load_tokenizer(folder)
    return load_model(folder, dtype="float32", device="cpu")


def entries(config):
    return [
        (name, value)
        for name in config
        if name not in ("transformers_version", "initializer_range")
        for value in VALUES
        if not any(value is one or (value == one and type(value) is type(one)) for one in FREE.get(name, ()))
    ]


def test_no_entry_of_a_config_is_believed_that_no_model_has(copy):
    config = json.loads((copy / "config.json").read_text())
    for name, value in entries(config):
        (copy / "config.json").write_text(json.dumps({**config, name: value}))
        with pytest.raises(UserError) as refused:
            open_folder(copy)
        assert str(copy) in str(refused.value), (name, value)
    for name, values in FREE.items():
        for value in values:
            (copy / "config.json").write_text(json.dumps({**config, name: value}))
            open_folder(copy)


LAST_OF = ["model.embed_tokens.weight", "model.norm.weight", "model.layers.3.mlp.up_proj.weight"]
READ = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
NAMES = [*READ, "special_tokens_map.json", "added_tokens.json", "model.safetensors.index.json"]
BOMBS = {"deep": "[" * 100_000, "deep object": '{"a":' * 100_000, "digits": "9" * 5000, "cut": "{", "list": "[]"}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
@pytest.mark.parametrize(
    "name", [*READ, "special_tokens_map.json", "added_tokens.json", "model.safetensors.index.json"]
)
def test_json_that_is_no_such_file_is_refused(copy, name, text):
    (copy / name).write_text(text)
    with pytest.raises(UserError) as refused:
        open_folder(copy)
    assert str(copy) in str(refused.value)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("name", READ)
def test_pipes_are_not_waited_on(copy, name):
    (copy / name).unlink()
    os.mkfifo(copy / name)
    with pytest.raises(UserError):
        open_folder(copy)


def test_a_model_larger_than_its_weights_is_not_made(copy):
    config = json.loads((copy / "config.json").read_text())
    assert least_parameters(config) <= Shape.from_config(config).parameters()
    for name, value in (("num_hidden_layers", 10_000), ("vocab_size", 2**24), ("intermediate_size", 2**24)):
        (copy / "config.json").write_text(json.dumps({**config, name: value}))
        start_s = time.monotonic()
        with rejects("config.json"):
            load_model(copy, dtype="float32", device="cpu")
        assert time.monotonic() - start_s < 2, name


def test_a_folder_without_tokenizer_files_is_no_target(copy):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (copy / name).unlink()
    with rejects("tokenizer.json", "tokenizer_config.json"):
        load_tokenizer(copy)


def test_a_tokenizer_of_special_tokens_alone_is_refused(copy):
    record = json.loads((copy / "tokenizer.json").read_text())
    special = {token["content"] for token in record["added_tokens"]}
    record["model"]["vocab"] = {word: place for word, place in record["model"]["vocab"].items() if word in special}
    (copy / "tokenizer.json").write_text(json.dumps(record))
    with rejects(3):
        load_tokenizer(copy)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", LAST_OF)
def test_weights_that_are_no_numbers_are_refused_by_name(copy, name, value):
    tensors = load_file(copy / "model.safetensors")
    tensors[name].view(-1)[-1] = value
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    with rejects("copy:", name, "NaN", "float32"):
        load_model(copy, dtype="float32", device="cpu")


def test_weights_beyond_a_number_type_are_refused_in_it(copy):
    tensors = load_file(copy / "model.safetensors")
    tensors["model.norm.weight"][0] = 1e6
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    load_model(copy, dtype="bfloat16", device="cpu")
    with rejects("model.norm.weight", "NaN", "float16"):
        load_model(copy, dtype="float16", device="cpu")


def header_of(file):
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def write_raw(file, header, data, *, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)


def rewritten(change, **raw):
    def damage(file):
        header, data = header_of(file)
        name = next(name for name in header if name != "__metadata__")
        found = change(header, name)
        write_raw(file, header if found is None else found, data, **raw)

    return damage


def sparse(file):
    with file.open("r+b") as opened:
        opened.truncate(0)
        opened.truncate(2 << 30)


def overlapping(header, name):
    other = next(key for key in header if key not in (name, "__metadata__"))
    header[other]["data_offsets"] = header[name]["data_offsets"]


DAMAGES = {
    "empty": lambda file: file.write_bytes(b""),
    "cut in the header": lambda file: file.write_bytes(file.read_bytes()[:100]),
    "cut in the data": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "header of 10^9 bytes": rewritten(lambda header, name: None, length=10**9),
    "header is no JSON": rewritten(lambda header, name: b"x" * 64),
    "deep header": rewritten(lambda header, name: b"[" * 100_000),
    "overlapping": rewritten(overlapping),
    "offsets of 10^18": rewritten(lambda header, name: header[name].update(data_offsets=[10**18, 10**18 + 4])),
    "negative offsets": rewritten(lambda header, name: header[name].update(data_offsets=[-4, 0])),
    "another type": rewritten(lambda header, name: header[name].update(dtype="I32")),
    "size of 2^63": rewritten(lambda header, name: header[name].update(shape=[2**63, 2])),
    "2 GB of nothing": sparse,
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_safetensors_are_refused(copy, damage):
    damage(copy / "model.safetensors")
    start_s = time.monotonic()
    with pytest.raises(UserError) as refused:
        load_model(copy, dtype="float32", device="cpu")
    assert str(copy) in str(refused.value)
    assert time.monotonic() - start_s < 2


@settings(max_examples=60, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from([*READ, "model.safetensors"]),
    place=st.floats(0, 1, exclude_max=True),
    insert=st.binary(max_size=4),
    remove=st.integers(0, 40),
)
def test_any_bytes_of_a_folder_may_change(tiny_target, copy, name, place, insert, remove):
    data = (tiny_target / name).read_bytes()
    start = int(place * (len(data) if name != "model.safetensors" else 4096))  # of the weights the header
    (copy / name).write_bytes(data[:start] + insert + data[start + remove :])
    try:
        with suppress(UserError):
            model = open_folder(copy)
            assert model(torch.arange(3, 9)[None]).logits.isfinite().all()
    finally:
        (copy / name).write_bytes(data)
