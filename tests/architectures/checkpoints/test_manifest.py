"""Manifests tell whether an artifact is current."""

import subprocess
from pathlib import Path

import pytest

from architectures import manifest
from architectures.manifest import changed_inputs, git_commit, read_manifest, write_manifest
from tests.rejections import rejects


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
