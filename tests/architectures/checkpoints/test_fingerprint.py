"""Fingerprints notice any byte of what makes a model; manifests tell by them whether an artifact is current."""

import shutil
import subprocess
from pathlib import Path

import pytest

from architectures import manifest
from architectures.manifest import (
    changed_inputs,
    fingerprint_checkpoint,
    fingerprint_folder,
    fingerprint_value,
    git_commit,
    read_manifest,
    write_manifest,
)
from tests.rejections import rejects

MIB = 1 << 20


def test_value_fingerprint_ignores_key_order_and_nothing_else():
    assert fingerprint_value({"a": 1, "b": 2}) == fingerprint_value({"b": 2, "a": 1})
    assert fingerprint_value({"a": 1}) != fingerprint_value({"a": 2})


@pytest.mark.parametrize("position", [0, 1, 3 * MIB, 5 * MIB, 8 * MIB - 1])
def test_weights_count_anywhere(tmp_path, position):
    weights = bytearray(8 * MIB)
    path = tmp_path / "model-00001-of-00002.safetensors"
    path.write_bytes(weights)
    before = fingerprint_checkpoint(tmp_path)
    weights[position] = 1
    path.write_bytes(weights)
    assert fingerprint_checkpoint(tmp_path) != before


READ_BY_TRANSFORMERS = [
    "config.json",
    "adapter_config.json",
    "x.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
]


@pytest.mark.parametrize("name", READ_BY_TRANSFORMERS)
def test_every_file_that_transformers_reads_counts(tmp_path, name):
    """Its content, whether it is there, and what it is called."""
    found = {fingerprint_checkpoint(tmp_path)}
    for content in ("{}", "{} "):
        (tmp_path / name).write_text(content)
        found.add(fingerprint_checkpoint(tmp_path))
    assert len(found) == 3


def test_end_tokens_count_and_what_an_assistant_proposes_does_not(tmp_path):
    """A draft is told its best num_speculative_tokens when it was scored; that must not make its scorecard stale."""
    (tmp_path / "config.json").write_text('{"eos_token_id": 2}')
    settings = tmp_path / "generation_config.json"
    found = [fingerprint_checkpoint(tmp_path)]
    for text in ('{"eos_token_id": 2}', '{"eos_token_id": 2, "num_assistant_tokens": 5}', '{"eos_token_id": [2, 7]}'):
        settings.write_text(text)
        found.append(fingerprint_checkpoint(tmp_path))
    assert found[0] == found[1] == found[2] != found[3]


@pytest.mark.parametrize("name", ["README.md", "LICENSE.txt", "manifest.json", "plan.json", "pytorch_model.bin"])
def test_no_other_file_does(tmp_path, name):
    before = fingerprint_checkpoint(tmp_path)
    (tmp_path / name).write_text("{}")
    assert fingerprint_checkpoint(tmp_path) == before


def test_a_copy_is_the_same_and_swapped_shards_are_not(tmp_path, tiny_target):
    copy = tmp_path / "copy"
    shutil.copytree(tiny_target, copy)
    assert fingerprint_checkpoint(copy) == fingerprint_checkpoint(tiny_target)
    for one, other in ("ab", "ba"):
        folder = tmp_path / one
        folder.mkdir()
        (folder / "1.safetensors").write_text(one)
        (folder / "2.safetensors").write_text(other)
    assert fingerprint_checkpoint(tmp_path / "a") != fingerprint_checkpoint(tmp_path / "b")


def test_a_folder_is_its_files_but_for_hidden_ones(tmp_path):
    found = []
    for name, content in (("a.jsonl", "1"), ("a.jsonl", "2"), ("deep/b.jsonl", "2"), (".git/index", "3")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
        found.append(fingerprint_folder(tmp_path))
    assert len(set(found)) == 3
    assert found[2] == found[3]


def test_manifest_round_trip_names_stage_inputs_versions_and_hardware(tmp_path):
    write_manifest(tmp_path, stage="prune", inputs={"target": "a"}, seed=17)
    record = read_manifest(tmp_path)
    assert record is not None
    assert (record["stage"], record["inputs"], record["seed"]) == ("prune", {"target": "a"}, 17)
    assert record["provenance"]["versions"]["transformers"]
    assert record["provenance"]["hardware"]["cores"] >= 1
    assert record["provenance"]["argv"]


@pytest.mark.parametrize(
    ("program", "written"),
    [
        ("/opt/somewhere/bin/widedraft", "widedraft"),
        (str(Path(manifest.__file__).parents[1] / "distill" / "train.py"), "distill/train.py"),
        ("benchmarks/loss.py", "benchmarks/loss.py"),
    ],
)
def test_a_command_does_not_tell_where_it_is_installed(monkeypatch, program, written):
    monkeypatch.setattr(manifest.sys, "argv", [program, "run", "/data/recipe.yaml"])
    assert manifest.provenance()["argv"] == [written, "run", "/data/recipe.yaml"]


def test_changed_inputs_names_added_removed_and_different_ones():
    recorded = {"inputs": {"same": "1", "different": "2", "removed": "3"}}
    assert changed_inputs(recorded, {"same": "1", "different": "x", "added": "4"}) == ["added", "different", "removed"]


def test_git_commit_is_ours_or_none(monkeypatch, tmp_path):
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    installed = tmp_path / "site-packages" / "manifest.py"
    installed.parent.mkdir()
    installed.write_text("")
    monkeypatch.setattr(manifest, "__file__", str(installed))
    assert git_commit() is None  # the enclosing checkout is the user's, not ours


@pytest.mark.parametrize(
    "text",
    ['{"stage"', '{"stage": "prune"}', '{"stage": "prune", "inputs": []}', '{"stage": 3, "inputs": {}}', "[]", None],
)
def test_what_is_no_manifest_is_refused(tmp_path, text):
    file = tmp_path / "manifest.json"
    file.mkdir() if text is None else file.write_text(text)
    with rejects("manifest.json"):
        read_manifest(tmp_path)
