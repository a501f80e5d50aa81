"""Targets: found where they are, fetched or imported once, and named when they are not there."""

import json
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import errors

from architectures import gguf_import
from architectures.gguf_format import gguf_inputs
from architectures.hub import read_config, read_remote_config, resolve_checkpoint
from tests.rejections import rejects


@pytest.fixture
def imports(monkeypatch):
    """Stands in for import_gguf: writes a manifest and counts."""
    calls = []

    def record(file: Path, out: Path) -> None:
        calls.append((file, out))
        out.mkdir(exist_ok=True)
        (out / "manifest.json").write_text(json.dumps({"stage": "import-gguf", "inputs": gguf_inputs(file)}))

    monkeypatch.setattr(gguf_import, "import_gguf", record)
    return calls


def test_a_local_folder_is_itself(tiny_target):
    assert resolve_checkpoint(str(tiny_target)) == tiny_target
    assert read_remote_config(str(tiny_target), "main") == read_config(tiny_target)


def test_a_revision_of_something_local_is_refused(tiny_target):
    for path in (str(tiny_target), "model.gguf"):
        with rejects(path, "v2"):
            resolve_checkpoint(path, revision="v2")


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere/at/all", "a/b/c", "~/nowhere", "model.bin"])
def test_a_path_that_is_no_folder_is_named(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("model.bin").touch()
    with rejects(path):
        resolve_checkpoint(path)


@pytest.mark.parametrize(
    "error",
    [
        errors.LocalEntryNotFoundError("No network.\nMore words."),
        errors.OfflineModeIsEnabled("No network."),
        errors.HFValidationError("No network."),
        errors.HTTPError("No network."),
        OSError("No network."),
    ],
)
def test_a_hub_that_fails_is_one_message_naming_id_and_revision(monkeypatch, error):
    def snapshot_download(*_, **__):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with rejects("owner/name", "v1", "No network.") as caught:
        resolve_checkpoint("owner/name", revision="v1")
    assert "More words" not in str(caught.value)


def test_an_unreachable_hub_is_a_user_error_for_real():
    with rejects("widedraft-tests/no-such-model", "main"):
        resolve_checkpoint("widedraft-tests/no-such-model")


def test_a_gguf_file_is_imported_once_and_again_when_it_changed(imports, tmp_path):
    file, cache = tmp_path / "Model.GGUF", tmp_path / "cache"
    file.write_bytes(b"one")

    assert [resolve_checkpoint(str(file), cache=cache) for _ in range(3)] == [cache] * 3
    assert imports == [(file, cache)]
    file.write_bytes(b"two")
    resolve_checkpoint(str(file), cache=cache)
    assert len(imports) == 2


def test_a_gguf_file_needs_to_exist_and_a_place_to_go(tmp_path):
    file = str(tmp_path / "gone.gguf")
    for read in (
        lambda: resolve_checkpoint(file, cache=tmp_path / "cache"),
        lambda: resolve_checkpoint(file),
        lambda: read_remote_config(file, "main"),
    ):
        with rejects("gone.gguf"):
            read()


@pytest.mark.parametrize("text", ["{", "[1]", None])
def test_a_broken_or_absent_config_is_named(tmp_path, text):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with rejects("config.json"):
        read_config(tmp_path)


def test_reading_a_config_and_planning_loads_no_torch():
    code = (
        "import sys; from architectures import families; from architectures import gguf_format; "
        "from architectures.pruning import plan; from architectures import hub, requested_shape, shapes; "
        "print({'torch', 'transformers', 'huggingface_hub'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "set()\n"
