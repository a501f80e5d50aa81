"""Model folders are opened whole, or refused with one message: damaged, foreign, hostile, or of another tokenizer."""

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
from safetensors.torch import load_file

from architectures.errors import UserError
from architectures.hub import read_config
from architectures.shapes import Shape
from eval.models import (
    least_parameters,
    load_model,
    load_tokenizer,
    require_finite,
    require_positions,
    require_same_tokenizer,
    shared_vocab_size,
    stop_token_ids,
)
from tests.architectures.cuts import edit_weights
from tests.conftest import edit_json
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
    edit_json(copy / "config.json", quantization_config={"quant_method": method})
    with rejects(copy / "config.json", method, "--endpoint"):
        load_model(copy, dtype="float32")


def test_a_missing_package_is_named(copy):
    edit_json(copy / "config.json", _attn_implementation="flash_attention_2")
    with rejects(copy / "config.json", "FlashAttention2"):
        load_model(copy, dtype="float32")


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
@pytest.mark.parametrize("name", NAMES)
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
    edit_weights(copy, lambda tensors: tensors[name].view(-1)[-1].fill_(value))
    with rejects("copy:", name, "NaN", "float32"):
        load_model(copy, dtype="float32", device="cpu")


def test_weights_beyond_a_number_type_are_refused_in_it(copy):
    edit_weights(copy, lambda tensors: tensors["model.norm.weight"][0].fill_(1e6))
    load_model(copy, dtype="bfloat16", device="cpu")
    with rejects("model.norm.weight", "NaN", "float16"):
        load_model(copy, dtype="float16", device="cpu")


DAMAGES = {
    "empty": lambda file: file.write_bytes(b""),
    "cut in the header": lambda file: file.write_bytes(file.read_bytes()[:100]),
    "cut in the data": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "2 GB of nothing": lambda file: (file.write_bytes(b""), os.truncate(file, 2 << 30)),
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


def test_model_is_in_eval_mode_and_holds_the_files_tensors(tiny_target):
    model = load_model(tiny_target, dtype="float32", device="cpu")
    stored = load_file(tiny_target / "model.safetensors")
    assert not model.training
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in stored.items())


@pytest.mark.parametrize(("ids", "stops"), [(2, {2}), ([2, 7], {2, 7}), (0, {0})])
def test_token_id_zero_can_be_a_stop_token(copy, ids, stops):
    """As any that the generation config names."""
    edit_json(copy / "generation_config.json", eos_token_id=ids)
    assert stop_token_ids(load_model(copy, dtype="float32", device="cpu")) == stops


def test_a_model_without_a_stop_token_never_stops(make_checkpoint):
    model = load_model(make_checkpoint(eos_token_id=None), dtype="float32", device="cpu")
    assert stop_token_ids(model) == frozenset()


def test_a_missing_shard_is_refused(copy):
    model = load_model(copy, dtype="float32", device="cpu")
    (copy / "model.safetensors").unlink()
    model.save_pretrained(copy, max_shard_size="300KB")
    assert load_model(copy, dtype="float32", device="cpu").num_parameters() == model.num_parameters()
    sorted(copy.glob("*.safetensors"))[1].unlink()
    with rejects(copy):
        load_model(copy, dtype="float32")


def drop_tensor(tensors):
    del tensors["model.layers.1.mlp.up_proj.weight"]


def drop_embeddings(tensors):
    del tensors["model.embed_tokens.weight"]


def add_tensor(tensors):
    tensors["model.layers.4.mlp.up_proj.weight"] = torch.zeros(3)


def reshape_tensor(tensors):
    tensors["model.norm.weight"] = torch.zeros(3)


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (drop_tensor, "1 model.layers.1.mlp.up_proj.weight"),
        (drop_embeddings, "2 lm_head.weight model.embed_tokens.weight"),
        (add_tensor, "1 model.layers.4.mlp.up_proj.weight"),
        (reshape_tensor, "1 config.json model.norm.weight"),
    ],
)
def test_no_tensor_is_ever_random_or_ignored(copy, edit, named):
    edit_weights(copy, edit)
    with rejects(*named.split()):
        load_model(copy, dtype="float32")


def test_pickled_weights_are_not_opened(copy):
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    with rejects(copy):
        load_model(copy, dtype="float32")


def test_a_text_may_fill_a_models_positions_and_no_more(tiny_target):
    require_positions(tiny_target, 2048)
    with rejects("max_position_embeddings", 2048, 2049):
        require_positions(tiny_target, 2049)


def test_a_model_that_states_no_limit_holds_any_text(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bloom"}')
    require_positions(tmp_path, 10**6)


def test_a_folder_without_config_is_refused(tmp_path):
    with rejects("config.json"):
        load_model(tmp_path, dtype="float32")
    with rejects("config.json"):
        load_tokenizer(tmp_path)


def test_a_swapped_token_is_refused_by_name(tiny_target, copy):
    record = json.loads((copy / "tokenizer.json").read_text())
    vocab = record["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (copy / "tokenizer.json").write_text(json.dumps(record))
    here, there = vocab["a"], vocab["b"]
    with rejects(2, "'a'", here, there):
        require_same_tokenizer(tiny_target, copy)


def test_an_added_token_is_refused_by_name(tiny_target, copy):
    tokenizer = load_tokenizer(copy)
    tokenizer.add_tokens(["<extra>"])
    tokenizer.save_pretrained(copy)
    with rejects("'<extra>'", 259):
        require_same_tokenizer(tiny_target, copy)


@pytest.mark.parametrize("token", ["bos_token", "eos_token"])
def test_another_beginning_or_stop_token_is_refused(tiny_target, copy, token):
    edit_json(copy / "tokenizer_config.json", **{token: "<|pad|>"})
    with rejects(f"{token}_id", 0):
        require_same_tokenizer(tiny_target, copy)


@pytest.mark.parametrize("vocab_size", [259, 272])
def test_embeddings_may_be_padded_differently(tiny_target, make_checkpoint, vocab_size):
    padded = make_checkpoint(vocab_size=vocab_size)
    require_same_tokenizer(tiny_target, padded)
    require_same_tokenizer(padded, tiny_target)
    models = [load_model(folder, dtype="float32", device="cpu") for folder in (tiny_target, padded)]
    assert shared_vocab_size(*models) == min(264, vocab_size)


def test_a_model_without_rows_for_its_tokens_is_refused(tiny_target, make_checkpoint):
    small = make_checkpoint(vocab_size=258)
    for pair in ((tiny_target, small), (small, tiny_target)):
        with rejects("vocab_size", 258) as caught:
            require_same_tokenizer(*pair)
        assert str(caught.value).startswith(f"{small}: ")


def test_outputs_that_float16_cannot_hold_are_named(make_checkpoint):
    folder = make_checkpoint(seed=1, dtype="float16")
    model = load_model(folder, dtype="float16", device="cpu")
    require_finite(torch.zeros(2, 3), model)
    with rejects("float16", "target.dtype"):
        require_finite(torch.tensor([1.0, float("nan")]), model)


def test_an_adapter_is_named_next_to_its_base_model(make_checkpoint):
    folder = make_checkpoint(seed=1)
    (folder / "adapter_config.json").write_text("{}")
    for opens in (read_config, load_tokenizer):
        with rejects(folder / "adapter_config.json"):
            opens(folder)


def test_a_template_of_a_multimodal_model_is_read(make_checkpoint):
    folder = make_checkpoint(seed=1)
    template = load_tokenizer(folder).chat_template
    (folder / "chat_template.jinja").unlink()
    assert load_tokenizer(folder).chat_template is None
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    assert load_tokenizer(folder).chat_template == template
