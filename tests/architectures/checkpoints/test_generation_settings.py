"""What a draft has from its target: files byte for byte, and generation_config.json, read, refused and written."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from architectures.hub import read_config
from architectures.pruning.prune import prune_checkpoint
from architectures.target_files import (
    CARRIED_FILES,
    SETTINGS_NAME,
    generation_identity,
    read_generation_settings,
    stop_ids,
    with_special_ids,
    write_assistant_settings,
)
from tests.architectures.cuts import logits, plan_for, pruned
from tests.families import DECODER_ONLY
from tests.rejections import rejects

OF_TARGET = {"bos_token_id": 1, "eos_token_id": [2, 7], "do_sample": True, "temperature": 0.6, "unknown": {"a": [1]}}


@pytest.fixture
def folder(tmp_path) -> Path:
    config = {"model_type": "llama", "bos_token_id": 1, "eos_token_id": [2, 7], "vocab_size": 9}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def put(folder: Path, text: str) -> None:
    (folder / SETTINGS_NAME).write_text(text)


ASSISTANT = {
    "num_assistant_tokens": 4,
    "num_assistant_tokens_schedule": "constant",
    "assistant_confidence_threshold": 0.0,
}


@pytest.mark.parametrize("before", [OF_TARGET, None])
def test_the_assistants_keys_are_added_once_and_nothing_else_changes(folder, before):
    if before is not None:
        put(folder, json.dumps(before))
    assert write_assistant_settings(folder, num_speculative_tokens=4)
    expected = {"bos_token_id": 1, "eos_token_id": [2, 7]} if before is None else before
    assert json.loads((folder / SETTINGS_NAME).read_text()) == expected | ASSISTANT
    assert not write_assistant_settings(folder, num_speculative_tokens=4)


@pytest.mark.parametrize("written", [True, False])
def test_the_identity_is_the_same_before_and_after(folder, written):
    if written:
        put(folder, json.dumps(OF_TARGET))
    before = generation_identity(folder)
    write_assistant_settings(folder, num_speculative_tokens=4)
    write_assistant_settings(folder, num_speculative_tokens=2)
    assert generation_identity(folder) == before
    assert stop_ids(folder) == {2, 7}


@pytest.mark.parametrize("change", [{"temperature": 0.7}, {"eos_token_id": 2}, {"eos_token_id": None}, {"new": 1}])
def test_any_other_change_is_another_identity(folder, change):
    put(folder, json.dumps(OF_TARGET))
    before = generation_identity(folder)
    put(folder, json.dumps(OF_TARGET | change))
    assert generation_identity(folder) != before


def test_settings_that_name_no_end_are_not_those_of_a_folder_without_a_file(folder):
    without = generation_identity(folder)
    put(folder, '{"bos_token_id": 1}')
    assert generation_identity(folder) != without
    assert stop_ids(folder) == frozenset()


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"eos_token_id": "2"}', '{"eos_token_id": [2, "7"]}', '{"pad_token_id": 1.5}']
)
def test_malformed_settings_are_refused(folder, text):
    put(folder, text)
    with rejects("generation_config.json"):
        read_generation_settings(folder)


SETTINGS = '{"eos_token_id": [2, 7],\n  "temperature": 0.60,  "odd":  "spacing"}'


@pytest.fixture
def dressed(family_checkpoint, tmp_path):
    """dressed(name, words, vocab_size): a target of a family's own, with every file that a draft takes from it."""

    def of(family: str, name: str, words: str, settings: str | None, **entries: Any) -> Path:
        folder = Path(shutil.copytree(family_checkpoint(family), tmp_path / name))
        for file in ("tokenizer.model", "merges.txt", "vocab.json", "special_tokens_map.json", "added_tokens.json"):
            (folder / file).write_text(f"{file} of {words}")
        (folder / "chat_template.jinja").write_text(f"{words} {{{{ messages }}}}")
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / f"{name}.jinja").write_text(words)
        (folder / "generation_config.json").unlink(missing_ok=True)
        if settings is not None:
            (folder / "generation_config.json").write_text(settings)
        (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | entries))
        return folder

    return of


def carried(folder: Path) -> dict[str, bytes]:
    """Every file of a folder that a target gives its drafts, by its path."""
    paths = [path for name in CARRIED_FILES for path in (folder / name, *(folder / name).glob("*"))]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.is_file()}


@pytest.mark.parametrize("settings", [SETTINGS, None], ids=["settings", "no settings"])
@pytest.mark.parametrize("with_source", [False, True], ids=["of the target", "of a source"])
@pytest.mark.parametrize("family", DECODER_ONLY)
def test_all_that_a_target_gives_its_draft_is_the_targets(dressed, tmp_path, family, with_source, settings):
    target = dressed(family, "target", "the target's", settings, eos_token_id=[2, 7], bos_token_id=5, pad_token_id=7)
    source = target
    if with_source:
        source = dressed(family, "source", "the source's", '{"eos_token_id": 2}', eos_token_id=2, bos_token_id=1)

    prune_checkpoint(source, plan_for(source, layers=2), tmp_path / "draft", target=target)

    assert carried(tmp_path / "draft") == carried(target)
    assert len(carried(target)) == 9 + (settings is not None)
    config = read_config(tmp_path / "draft")
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (5, [2, 7], 7)


@pytest.mark.parametrize("vocab_size", [259, 264, 272])
@pytest.mark.parametrize("family", DECODER_ONLY)
def test_the_draft_has_the_targets_vocabulary_and_says_what_its_source_says(
    family_checkpoint, tmp_path, family, vocab_size
):
    source = family_checkpoint(family)
    plan = plan_for(source, layers=2)
    plain, draft = (
        pruned(source, each, tmp_path / name)
        for name, each in (("plain", plan), ("draft", plan.with_vocab(vocab_size)))
    )

    assert draft.config.vocab_size == vocab_size
    found_TV, expected_TV = logits(draft)[0], logits(plain)[0]
    rows = min(vocab_size, 264)
    torch.testing.assert_close(found_TV[:, :rows], expected_TV[:, :rows], rtol=1e-4, atol=1e-4)
    assert int(found_TV.argmax(dim=-1).max()) < 264


def test_an_id_that_the_target_does_not_name_is_not_named():
    given = {"eos_token_id": [2, 7], "bos_token_id": None}
    source = {"eos_token_id": 2, "pad_token_id": 0, "vocab_size": 9}
    assert with_special_ids(source, given) == {"vocab_size": 9, **given}
