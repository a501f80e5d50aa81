"""A draft's folder whose output head says some ids alone is opened whole and silently, or refused by what is wrong."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from architectures.families import FAMILIES
from architectures.hub import read_config
from architectures.shapes import Shape
from architectures.vocabulary import DRAFT_VOCABULARY_NAME
from architectures.vocabulary_head import head_ids
from eval.models import load_config, load_model
from eval.replay import response_logits
from tests.eval.conftest import SAID
from tests.families import DECODER_ONLY
from tests.rejections import rejects
from widedraft import main

SETTINGS = {
    "opt": {"ffn_dim": 128, "word_embed_proj_dim": 64},
    "gpt_neox": {"tie_word_embeddings": False},
    "ministral3": {"max_position_embeddings": 262144},  # fits its YaRN factor, of which transformers would warn
}


@pytest.fixture
def copy(small_head_folder, tmp_path):
    """A small head's folder that a test may damage."""
    return Path(shutil.copytree(small_head_folder, tmp_path / "copy"))


@pytest.mark.parametrize("family", DECODER_ONLY)
def test_every_family_opens_with_the_rows_of_its_file(family, make_checkpoint, with_small_head, caplog, capfd):
    """What it says is what the whole head says at its ids; nothing is warned of, and no number drawn at random."""
    whole_folder = make_checkpoint(seed=3, model_type=family, num_hidden_layers=2, **SETTINGS.get(family, {}))
    folder = with_small_head(whole_folder)
    capfd.readouterr()
    before = torch.get_rng_state()
    draft = load_model(folder, dtype="float32", device="cpu")
    assert torch.equal(torch.get_rng_state(), before)
    printed = capfd.readouterr()
    assert (printed.out, printed.err, caplog.records) == ("", "", [])

    stored = load_file(folder / "model.safetensors")[FAMILIES[family].weight("head")]
    assert torch.equal(draft.get_output_embeddings().weight, stored)
    assert head_ids(draft).tolist() == list(SAID)
    assert draft.num_parameters() == Shape.from_config(read_config(folder)).parameters()
    whole = load_model(whole_folder, dtype="float32", device="cpu")
    assert type(draft) is type(whole)
    pickle.loads(pickle.dumps(draft))
    expected, found = (response_logits(model, [5, 6], [7, 8, 9]) for model in (whole, draft))
    torch.testing.assert_close(found[:, list(SAID)], expected[:, list(SAID)])
    assert found[:, [id_ for id_ in range(264) if id_ not in SAID]].isneginf().all()


def test_a_head_is_in_the_number_type_that_is_asked_for_and_stays_out_of_packing(small_head_folder):
    half = load_model(small_head_folder, dtype="bfloat16", device="cpu")
    assert half.get_output_embeddings().weight.dtype is torch.bfloat16
    pytest.importorskip("bitsandbytes")
    packed = load_model(small_head_folder, dtype="float32", device="cpu", bits=8)
    assert packed.get_output_embeddings().weight.dtype is torch.float32
    assert packed(torch.tensor([[5, 6]])).logits.shape == (1, 2, len(SAID))


def edit_config(**changes):
    def edit(folder):
        path = folder / "config.json"
        kept = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({name: value for name, value in kept.items() if value is not ...}))

    return edit


def edit_ids(change):
    def edit(folder):
        path = folder / DRAFT_VOCABULARY_NAME
        record = json.loads(path.read_text())
        record["ids"] = change(record["ids"])
        path.write_text(json.dumps(record))

    return edit


def edit_head(change):
    def edit(folder):
        path = folder / "model.safetensors"
        tensors = load_file(path)
        changed = change(tensors.pop("lm_head.weight"))
        save_file(tensors | ({} if changed is None else {"lm_head.weight": changed}), path, metadata={"format": "pt"})

    return edit


def write(text):
    return lambda folder: (folder / DRAFT_VOCABULARY_NAME).write_text(text)


def remove(folder):
    (folder / DRAFT_VOCABULARY_NAME).unlink()


ROWS = len(SAID)
FILES = "config.json", "draft_vocabulary.json", "lm_head.weight"
DAMAGE = {
    "no file": (remove, ["draft_vocabulary.json"]),
    "descending": (edit_ids(lambda ids: ids[::-1]), ["ids"]),
    "beyond": (edit_ids(lambda ids: [*ids[:-1], 264]), ["ids", 263, 264]),
    "fewer ids": (edit_ids(lambda ids: ids[:-1]), [*FILES, ROWS, ROWS - 1, 264]),
    "another vocabulary": (write(json.dumps({"ids": SAID, "vocab_size": 300})), [*FILES, ROWS, 300]),
    "another entry": (edit_config(head_vocab_size=ROWS - 1), [*FILES, ROWS - 1, ROWS, 264]),
    "fewer rows": (edit_head(lambda head: head[:-1].clone()), [*FILES, ROWS, 264, ROWS - 1]),
    "no head": (edit_head(lambda head: None), [*FILES, ROWS, 264, 0]),
    "a narrower head": (edit_head(lambda head: head[:, :-1].clone()), ["lm_head.weight"]),
    "a head of NaN": (edit_head(lambda head: head * torch.nan), ["lm_head.weight", "NaN"]),
    "a head of whole numbers": (edit_head(lambda head: head.int()), ["lm_head.weight", "I32"]),
    "no entry": (edit_config(head_vocab_size=...), ["config.json", "head_vocab_size"]),
    "an entry of all ids": (edit_config(head_vocab_size=264), ["head_vocab_size", 264]),
    "a tied head": (edit_config(tie_word_embeddings=True), ["head_vocab_size", "tie_word_embeddings"]),
    "a family that is not cut": (edit_config(model_type="cohere"), ["cohere"]),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_head_that_is_not_what_the_files_say_is_refused(copy, damage):
    edit, named = DAMAGE[damage]
    edit(copy)
    with rejects(*named) as refused:
        load_model(copy, dtype="float32", device="cpu")
    assert str(refused.value).startswith(str(copy))


def test_ids_beside_a_whole_head_are_refused(tiny_target, small_head_folder, tmp_path):
    folder = Path(shutil.copytree(tiny_target, tmp_path / "whole"))
    shutil.copyfile(small_head_folder / DRAFT_VOCABULARY_NAME, folder / DRAFT_VOCABULARY_NAME)
    with rejects("config.json", "head_vocab_size"):
        load_model(folder, dtype="float32", device="cpu")


def test_an_encoder_decoder_with_a_small_head_is_refused(translators, small_head_folder, tmp_path):
    """None is ever cut; a draft of a decoder alone may draft for one."""
    folder = tmp_path / "t5"
    translators[0].save_pretrained(folder)
    edit_config(head_vocab_size=100)(folder)
    shutil.copyfile(small_head_folder / DRAFT_VOCABULARY_NAME, folder / DRAFT_VOCABULARY_NAME)
    assert load_config(folder).is_encoder_decoder
    with rejects("head_vocab_size", "t5"):
        load_model(folder, dtype="float32", device="cpu", encoder_decoder=True)


@pytest.mark.parametrize("command", ["verify", "benchmark", "benchmark --grid"])
def test_no_command_takes_it_for_a_target(command, small_head_folder, tiny_draft, capsys):
    assert main([*command.split(), "--target", str(small_head_folder), "--draft", str(tiny_draft)]) == 2
    assert f"{small_head_folder / 'config.json'}: head_vocab_size" in capsys.readouterr().err


def test_transformers_own_loop_is_not_measured_with_it(target_folder, small_head_folder, capsys):
    """It would take rows for tokens."""
    assert main(["benchmark", "--target", str(target_folder), "--draft", str(small_head_folder), "--assisted"]) == 2
    assert f"--assisted: {small_head_folder}" in capsys.readouterr().err
