"""A checkpoint is opened whole or refused with a sentence that names the folder, the fact and the remedy."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from architectures.errors import UserError
from eval.models.loading import (
    load_model,
    load_tokenizer,
    refuse_incomplete,
    require_positions,
    require_same_tokenizer,
    shared_vocab_size,
    stop_token_ids,
    vocabulary_difference,
)


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


def test_dtype_is_the_one_asked_for(tiny_target):
    assert load_model(tiny_target, dtype="bfloat16", device="cpu").dtype is torch.bfloat16


@pytest.mark.parametrize("is_terminal", [False, True])
def test_loading_shows_its_bar_in_a_terminal_alone(tiny_target, is_terminal, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    load_model(tiny_target, dtype="float32", device="cpu")
    assert ("Loading weights" in capsys.readouterr().err) is is_terminal


@pytest.mark.parametrize("settings", ["{", "[2]", '{"eos_token_id": "</s>"}'])
def test_generation_settings_that_cannot_be_read_are_refused(copy, settings):
    (copy / "generation_config.json").write_text(settings)
    with pytest.raises(UserError, match=r"copy/generation_config\.json: "):
        load_model(copy, dtype="float32", device="cpu")


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


def cut_in_half(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def remove_weights(folder):
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize("damage", [cut_in_half, remove_weights])
def test_unreadable_weights_are_refused(copy, damage):
    damage(copy)
    with pytest.raises(UserError, match=r"weights could not be read .* missing or cut short") as caught:
        load_model(copy, dtype="float32")
    assert str(copy) in str(caught.value)
    assert "\n" not in str(caught.value)


def drop_shard(folder):
    sorted(folder.glob("*.safetensors"))[1].unlink()


def cut_shard(folder):
    path = sorted(folder.glob("*.safetensors"))[1]
    path.write_bytes(path.read_bytes()[:-1])


def break_index(folder):
    (folder / "model.safetensors.index.json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop_shard, "weights could not be read"),
        (cut_shard, "weights could not be read"),
        (break_index, r"model\.safetensors\.index\.json: is not valid JSON"),
    ],
)
def test_a_damaged_shard_is_refused(copy, damage, message):
    model = load_model(copy, dtype="float32", device="cpu")
    (copy / "model.safetensors").unlink()
    model.save_pretrained(copy, max_shard_size="300KB")
    assert load_model(copy, dtype="float32", device="cpu").num_parameters() == model.num_parameters()
    damage(copy)
    with pytest.raises(UserError, match=message):
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
    ("edit", "message"),
    [
        (drop_tensor, r"1 tensors are missing from its weights: model\.layers\.1\.mlp\.up_proj\.weight\."),
        (drop_embeddings, r"2 tensors are missing from its weights: lm_head\.weight, model\.embed_tokens\.weight\."),
        (add_tensor, r"1 tensors are in its weights but not in the model: model\.layers\.4\.mlp\.up_proj\.weight\."),
        (reshape_tensor, r"1 tensors have another shape than config\.json says: model\.norm\.weight\."),
    ],
)
def test_no_tensor_is_ever_random_or_ignored(copy, edit, message):
    edit_weights(copy, edit)
    with pytest.raises(UserError, match=message):
        load_model(copy, dtype="float32")


def test_long_lists_of_tensors_are_cut(copy):
    edit_json(copy / "config.json", num_hidden_layers=6)
    with pytest.raises(UserError, match=r"18 tensors are missing .*, \.\.\.\. config\.json") as caught:
        load_model(copy, dtype="float32")
    assert str(caught.value).count("model.layers.") == 5


def test_lists_of_five_tensors_are_whole():
    report = {"missing_keys": list("edcba"), "unexpected_keys": [], "mismatched_keys": []}
    with pytest.raises(UserError, match=r"5 tensors are missing from its weights: a, b, c, d, e\. config"):
        refuse_incomplete(Path("folder"), report)


def test_pickled_weights_are_not_opened(copy):
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    with pytest.raises(UserError, match="weights could not be read"):
        load_model(copy, dtype="float32")


def test_a_text_may_fill_a_models_positions_and_no_more(tiny_target):
    require_positions(tiny_target, 2048)
    with pytest.raises(
        UserError, match=r"max_position_embeddings is 2048, but the longest text to score has 2049 tokens"
    ):
        require_positions(tiny_target, 2049)


def test_a_model_that_states_no_limit_holds_any_text(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bloom"}')
    require_positions(tmp_path, 10**6)


def test_a_folder_without_config_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"no config\.json there"):
        load_model(tmp_path, dtype="float32")
    with pytest.raises(UserError, match=r"no config\.json there"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("text", [None, "{", "{}"])
def test_an_unreadable_tokenizer_is_refused(copy, text):
    (copy / "tokenizer.json").unlink()
    if text is not None:
        (copy / "tokenizer.json").write_text(text)
    with pytest.raises(UserError, match="tokenizer could not be read") as caught:
        load_tokenizer(copy)
    assert str(copy) in str(caught.value)


def test_one_tokenizer_is_accepted(tiny_target, tiny_draft):
    require_same_tokenizer(tiny_target, tiny_draft)


def test_a_swapped_token_is_refused_by_name(tiny_target, copy):
    record = json.loads((copy / "tokenizer.json").read_text())
    vocab = record["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (copy / "tokenizer.json").write_text(json.dumps(record))
    here, there = vocab["a"], vocab["b"]
    with pytest.raises(UserError, match=rf"of which 2 differ; 'a' is {here} here and {there} in the target"):
        require_same_tokenizer(tiny_target, copy)


def test_an_added_token_is_refused_by_name(tiny_target, copy):
    tokenizer = load_tokenizer(copy)
    tokenizer.add_tokens(["<extra>"])
    tokenizer.save_pretrained(copy)
    with pytest.raises(UserError, match=r"'<extra>' is 259 here and absent in the target"):
        require_same_tokenizer(tiny_target, copy)


def test_the_first_differing_token_is_the_one_with_the_smallest_id():
    assert "'z' is 5 here and 1 in the target" in vocabulary_difference(
        {"z": 1, "b": 2, "a": 5}, {"z": 5, "b": 2, "a": 1}
    )


def test_another_beginning_token_is_refused(tiny_target, copy):
    edit_json(copy / "tokenizer_config.json", bos_token="<|pad|>")
    with pytest.raises(UserError, match=r"bos_token_id is 0 but the target .* has 1"):
        require_same_tokenizer(tiny_target, copy)


def test_another_stop_token_is_refused(tiny_target, copy):
    edit_json(copy / "tokenizer_config.json", eos_token="<|pad|>")
    with pytest.raises(UserError, match=r"eos_token_id is 0 but the target .* has 2"):
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
        with pytest.raises(UserError, match=r"vocab_size is 258 but its tokenizer has tokens up to id 258") as caught:
            require_same_tokenizer(*pair)
        assert str(caught.value).startswith(f"{small}: ")


def test_an_unreadable_config_is_refused_when_tokenizers_are_compared(tiny_target, copy):
    edit_json(copy / "config.json", model_type="nonesuch")
    with pytest.raises(UserError, match=r"config\.json: could not be read"):
        require_same_tokenizer(tiny_target, copy)
