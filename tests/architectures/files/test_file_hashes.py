"""sha256 of files: of all bytes, read once while a file stays what it was."""

import hashlib
import json
import os

import pytest

from architectures import manifest
from architectures.files import MIB
from architectures.manifest import record_file, sha256_of_file, sha256_of_files
from tests.rejections import rejects

NUM_BYTES = 9 * MIB
OLD_NS = 1_500_000_000_000_000_000


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WIDEDRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(manifest, "SETTLED_NS", 0)
    return tmp_path / "cache"


@pytest.fixture
def large(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(NUM_BYTES))
    return path


@pytest.fixture
def read(monkeypatch):
    """How often a file was read."""
    digests = []

    def digest(file, name):
        digests.append(name)
        return original(file, name)

    original = hashlib.file_digest
    monkeypatch.setattr(manifest.hashlib, "file_digest", digest)
    return digests


@pytest.mark.parametrize("num_bytes", [0, 1, MIB, NUM_BYTES])
def test_it_is_the_sha256_of_all_bytes(tmp_path, num_bytes):
    content = os.urandom(num_bytes)
    (tmp_path / "file").write_bytes(content)
    assert sha256_of_file(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def test_several_files_keep_their_order(tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "LONG_BYTES", 1)
    paths = [tmp_path / str(number) for number in range(9)]
    for path in paths:
        path.write_text(path.name)
    assert sha256_of_files(paths, description="x") == [hashlib.sha256(path.name.encode()).hexdigest() for path in paths]


def test_a_large_file_is_read_once_also_through_a_link(tmp_path, large, read):
    (tmp_path / "link").symlink_to(large)
    assert len({sha256_of_file(path) for path in (large, large, tmp_path / "link")}) == 1
    assert len(read) == 1


@pytest.mark.parametrize("hidden", [False, True], ids=["", "with its modification time put back"])
def test_a_changed_file_is_read_again(large, hidden):
    os.utime(large, ns=(OLD_NS, OLD_NS))
    before = sha256_of_file(large)
    with large.open("r+b") as file:
        os.pwrite(file.fileno(), b"\1", NUM_BYTES // 2)
    if hidden:
        os.utime(large, ns=(OLD_NS, OLD_NS))
    assert sha256_of_file(large) != before


def test_nothing_is_remembered_of_a_file_written_just_now(large, read, monkeypatch):
    monkeypatch.setattr(manifest, "SETTLED_NS", 10**15)
    sha256_of_file(large)
    sha256_of_file(large)
    assert len(read) == 2


@pytest.mark.parametrize("damage", ["", "{", "[]", json.dumps({"state": [1], "sha256": "0"})])
def test_a_damaged_record_is_not_used(large, read, damage):
    before = sha256_of_file(large)
    record_file(large).write_text(damage)
    assert sha256_of_file(large) == before
    assert len(read) == 2


def test_a_cache_that_cannot_be_written_costs_another_reading(tmp_path, large, read, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WIDEDRAFT_CACHE", str(tmp_path / "file"))
    assert sha256_of_file(large) == sha256_of_file(large)
    assert len(read) == 2


def test_what_is_no_file_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with rejects(path):
            sha256_of_file(path)
