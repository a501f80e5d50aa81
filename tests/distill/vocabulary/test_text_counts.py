"""Ids counted in section text: the sequences a training reads, in its mixture, and no held-out one."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from architectures.vocabulary import TOKENIZER, read_draft_vocabulary
from distill.draft_vocabulary import id_counts_in_text, tokens_in
from distill.pipeline import prune_stage
from distill.run import Run
from eval.models import load_tokenizer
from tests.rejections import rejects

LENGTH, HELD_OUT = 8, 2


@pytest.fixture
def on_text(make_recipe, tmp_path):
    """on_text({domain: (text, weight)}, size) -> a recipe that counts them."""

    def make(domains, size=262):
        for name, (text, _) in domains.items():
            (tmp_path / f"{name}.txt").write_text(text)
        named = [
            {"name": name, "path": str(tmp_path / f"{name}.txt"), "weight": weight}
            for name, (_, weight) in domains.items()
        ]
        text = {"domains": named, "max_seq_len": LENGTH, "num_eval_sequences": HELD_OUT}
        return make_recipe({"size": size, "from": "text"}, text=text)

    return make


def words(number: int, count: int) -> str:
    return f"word{number:02}" * count


def counted(recipe, target):
    return id_counts_in_text(recipe.text, target, seed=recipe.seed)


def test_a_text_is_counted_once_without_what_is_held_out(on_text, wordy_target):
    whole = words(3, 16) + words(5, 40) + words(7, 20) + words(9, 3)
    counts = counted(on_text({"a": (whole, 1.0)}), wordy_target)
    ids = load_tokenizer(wordy_target)(f"{whole}\n", add_special_tokens=False)["input_ids"]
    assert len(ids) == 80
    read = Counter(ids[HELD_OUT * LENGTH :])
    # the sequence that begins the text again is counted before it is seen that all was read once
    more = counts["a"] - read
    assert not read - counts["a"]
    assert more.total() == LENGTH
    assert 262 not in counts["a"]  # word03 is held out


def test_the_ids_of_a_draft_are_those_the_text_says(on_text):
    recipe = on_text({"a": (words(3, 16) + words(30, 40) + words(20, 24), 1.0)}, size=262)
    prune_stage(Run.of(recipe))
    found = read_draft_vocabulary(Path(recipe.run_dir) / "init")
    assert set(found.ids) - set(range(259)) == {289, 279, 259}  # words 30 and 20, and the lowest of those unsaid
    assert found.origin["from"] == "text"
    assert found.origin["tokens"] > 60
    assert found.origin["coverage"] == {"counted": {"a": 1.0}}


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
