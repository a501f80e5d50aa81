"""generation_config.json: read or refused, and written for transformers without touching what the target says."""

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from architectures.target_files import (
    SETTINGS_NAME,
    generation_identity,
    read_generation_settings,
    stop_ids,
    write_assistant_settings,
)
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


def test_transformers_proposes_so_many_tokens(make_checkpoint):
    folder = make_checkpoint(num_hidden_layers=1)
    (folder / SETTINGS_NAME).write_text(json.dumps(OF_TARGET))
    write_assistant_settings(folder, num_speculative_tokens=5)
    config = AutoModelForCausalLM.from_pretrained(folder).generation_config
    assert (config.num_assistant_tokens, config.num_assistant_tokens_schedule) == (5, "constant")
    assert config.assistant_confidence_threshold == 0
    assert config.eos_token_id == [2, 7]
