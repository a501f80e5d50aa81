"""What `widedraft convert` refuses, and that it then writes nothing."""

import json
import shutil

import pytest

from architectures.convert import convert_draft
from tests.architectures.cuts import edit_weights
from tests.architectures.draft_vocabulary.test_tokens import unigram
from tests.rejections import rejects


def edit(name, change):
    """A mistake: a JSON file of the folder, changed."""

    def make(folder):
        values = json.loads((folder / name).read_text())
        change(values)
        (folder / name).write_text(json.dumps(values))

    return make


def remove(name):
    return lambda folder: (folder / name).unlink()


def without_numbers(folder):
    edit_weights(folder, lambda tensors: tensors["model.layers.1.mlp.up_proj.weight"][3, 4].fill_(float("nan")))


RECORD = "draft_vocabulary.json"
ENDS = {"sep": ["<|im_end|>", 2], "cls": ["<|im_start|>", 1]}
ROBERTA = {"type": "RobertaProcessing", **ENDS, "trim_offsets": True, "add_prefix_space": False}
MISTAKES = {  # form, what is spoilt, and what the message names
    "no small head": ("whole", edit("config.json", lambda v: v.pop("head_vocab_size")), RECORD),
    "no record": ("whole", remove(RECORD), RECORD),
    "damaged record": ("whole", edit(RECORD, lambda v: v["ids"].__setitem__(1, 0)), RECORD),
    "another's record": ("whole", edit(RECORD, lambda v: v["ids"].pop()), RECORD),
    "a record of another vocabulary": ("whole", edit(RECORD, lambda v: v.update(vocab_size=265)), RECORD),
    "no numbers": ("whole", without_numbers, "mlp.up_proj.weight"),
    "unknown is said": ("own-tokenizer", edit(RECORD, lambda v: v.update(unknown_id=1)), "unknown_id"),
    "unknown is none": ("whole", edit(RECORD, lambda v: v.update(unknown_id=264)), "unknown_id"),
    "strange origin": ("whole", edit(RECORD, lambda v: v.update(origin={"never_said": [3]})), "origin.never_said"),
    "no tokenizer": ("whole", remove("tokenizer.json"), "tokenizer.json"),
    "unigram": ("own-tokenizer", lambda folder: unigram().save_pretrained(folder), "Unigram"),
    "frame": ("own-tokenizer", edit("tokenizer.json", lambda v: v.update(post_processor=ROBERTA)), "RobertaProcessing"),
    "only a vocab.json": (
        "own-tokenizer",
        lambda folder: (folder / "tokenizer.json").rename(folder / "vocab.json"),
        "tokenizer.json",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_damaged_draft_is_refused(small_draft, tmp_path, mistake):
    form, spoil, named = MISTAKES[mistake]
    draft = shutil.copytree(small_draft("llama"), tmp_path / "draft")
    spoil(draft)
    with rejects(draft, named):
        convert_draft(draft, tmp_path / "out", form)
    assert [path.name for path in tmp_path.iterdir()] == ["draft"]


@pytest.mark.parametrize("family", ["gemma2", "gpt_neox"])
def test_a_family_that_vllm_cannot_serve_so_is_told_the_other_form(small_draft, tmp_path, family):
    with rejects("--form whole"):
        convert_draft(small_draft(family), tmp_path / "out", "own-tokenizer")


def test_only_an_earlier_conversion_is_replaced(small_draft, tmp_path):
    draft, out = shutil.copytree(small_draft("llama"), tmp_path / "draft"), tmp_path / "out"
    convert_draft(draft, out, "whole")
    convert_draft(draft, out, "own-tokenizer")
    assert "unknown" in (out / "README.md").read_text()
    with rejects(draft):
        convert_draft(draft, draft, "whole")
    with rejects(tmp_path):
        convert_draft(draft, tmp_path, "whole")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with rejects(tmp_path / "mine", "manifest.json"):
        convert_draft(draft, tmp_path / "mine", "whole")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"


def test_a_path_by_which_vllm_would_take_another_method_is_refused(small_draft, tmp_path):
    with rejects("eagle-whole"):
        convert_draft(small_draft("llama"), tmp_path / "eagle-whole" / "out", "whole")
    assert not list(tmp_path.iterdir())
