"""The tokens of a target whose tokenizer is in other files than tokenizer.json."""

import json
import shutil

import pytest

from architectures.vocabulary import TOKENIZER
from distill.draft_vocabulary import tokens_in
from tests.rejections import rejects


@pytest.fixture
def older_files(wordy_target, tmp_path):
    """A folder with vocab.json and merges.txt, as GPT-2 came, and the same with the tokenizer.json made of them."""
    from transformers import AutoTokenizer

    older = tmp_path / "older"
    older.mkdir()
    vocabulary = json.loads((wordy_target / TOKENIZER).read_text())["model"]["vocab"]
    (older / "vocab.json").write_text(json.dumps(vocabulary))
    (older / "merges.txt").write_text("#version: 0.2\n")
    named = {"unk_token": "<|im_end|>", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    (older / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", **named}))
    shutil.copyfile(wordy_target / "config.json", older / "config.json")
    today = tmp_path / "today"
    AutoTokenizer.from_pretrained(older).save_pretrained(today)
    shutil.copyfile(wordy_target / "config.json", today / "config.json")
    return older, today


def test_tokens_are_the_same_in_whatever_files_they_are(older_files):
    older, today = older_files
    assert not (older / TOKENIZER).exists()
    assert (today / TOKENIZER).is_file()
    found = tokens_in(older, 320)
    assert found == tokens_in(today, 320)
    assert (len(found.ids), len(found.single_bytes)) == (259, 256)


def test_a_tokenizer_that_no_such_file_can_hold_is_refused(older_files, monkeypatch):
    monkeypatch.setattr("eval.models.load_tokenizer", lambda _: object())
    with rejects("older"):
        tokens_in(older_files[0], 320)
    assert tokens_in(older_files[1], 320).ends == {2}
