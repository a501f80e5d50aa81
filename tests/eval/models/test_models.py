"""A checkpoint is opened whole or refused with a sentence that names the folder, the fact and the remedy."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from architectures.hub import read_config
from eval.models import (
    load_model,
    load_tokenizer,
    require_finite,
    require_positions,
    require_same_tokenizer,
    shared_vocab_size,
    stop_token_ids,
)
from tests.rejections import rejects


@pytest.fixture
def copy(tiny_target, tmp_path):
    """A checkpoint a test may damage."""
    return Path(shutil.copytree(tiny_target, tmp_path / "copy"))


def edit_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder, edit):
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_model_is_in_eval_mode_and_holds_the_files_tensors(tiny_target):
    model = load_model(tiny_target, dtype="float32", device="cpu")
    stored = load_file(tiny_target / "model.safetensors")
    assert not model.training
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in stored.items())


def test_stop_tokens_come_from_the_generation_config(copy):
    assert stop_token_ids(load_model(copy, dtype="float32", device="cpu")) == {2}
    edit_json(copy / "generation_config.json", eos_token_id=[2, 7])
    assert stop_token_ids(load_model(copy, dtype="float32", device="cpu")) == {2, 7}


def test_token_id_zero_can_be_a_stop_token(copy):
    edit_json(copy / "generation_config.json", eos_token_id=0)
    assert stop_token_ids(load_model(copy, dtype="float32", device="cpu")) == {0}


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
