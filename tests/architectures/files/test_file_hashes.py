"""Hashes see every byte; what is remembered of a file saves reading it and is never believed of a changed one."""

import hashlib
import json
import os
import stat
import time

import pytest

from architectures.errors import UserError
from architectures.files import file_hashes
from architectures.files.file_hashes import cache_folder, rehash_from_now, sha256_of_file, sha256_of_files
from architectures.files.reading import MIB

NUM_BYTES = file_hashes.REMEMBERED_BYTES + 3
OLD_NS = 1_500_000_000_000_000_000


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of this test's own; files count as at rest at once unless a test says otherwise."""
    monkeypatch.setenv("WIDEDRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("WIDEDRAFT_REHASH_FROM", "0")
    monkeypatch.setattr(file_hashes, "SETTLED_NS", 0)
    return tmp_path / "cache"


@pytest.fixture
def hashed(monkeypatch):
    """The names of the files that were read, in any order."""
    names = []
    hash_file = file_hashes.hash_file

    def counting(path, *others):
        names.append(path.name)
        return hash_file(path, *others)

    monkeypatch.setattr(file_hashes, "hash_file", counting)
    return names


@pytest.fixture
def large(tmp_path):
    path = tmp_path / "large.bin"
    path.write_bytes(os.urandom(NUM_BYTES))
    return path


def record_of(path):
    file = file_hashes.record_file(path)
    assert file is not None
    return file


@pytest.mark.parametrize("num_bytes", [0, 1, MIB, NUM_BYTES])
def test_it_is_the_sha256_of_all_bytes(tmp_path, num_bytes):
    path = tmp_path / "some.bin"
    path.write_bytes(os.urandom(num_bytes))
    expected = hashlib.sha256(path.read_bytes()).hexdigest()
    assert [sha256_of_file(path), sha256_of_file(path)] == [expected] * 2


def test_several_files_keep_their_order(tmp_path, large, hashed):
    paths = [tmp_path / f"{name}.bin" for name in "cab"]
    for path in paths:
        path.write_bytes(os.urandom(NUM_BYTES))
    sha256_of_file(paths[1])
    everything = [paths[0], paths[1], large, paths[2]]
    expected = [hashlib.sha256(path.read_bytes()).hexdigest() for path in everything]
    assert sha256_of_files(everything, description="hashing") == expected
    assert sorted(hashed) == ["a.bin", "b.bin", "c.bin", "large.bin"]


def test_a_large_file_is_read_once(large, hashed):
    assert len({sha256_of_file(large) for _ in range(3)}) == 1
    assert hashed == ["large.bin"]


def test_a_small_file_leaves_nothing_behind(tmp_path, cache):
    small = tmp_path / "small.json"
    small.write_text("{}")
    sha256_of_file(small)
    assert not cache.exists()


def test_links_to_one_file_share_what_is_remembered(tmp_path, large, hashed):
    """A hub cache: snapshots/<revision>/x.safetensors is a link to blobs/<hash>."""
    link = tmp_path / "snapshot.safetensors"
    link.symlink_to(large)
    assert sha256_of_file(link) == sha256_of_file(large)
    assert len(hashed) == 1


def test_a_blob_is_not_believed_for_its_name(tmp_path, hashed):
    content = os.urandom(NUM_BYTES)
    blob, link = tmp_path / hashlib.sha256(content).hexdigest(), tmp_path / "model.safetensors"
    blob.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    link.symlink_to(blob)
    assert sha256_of_file(link) != blob.name
    assert len(hashed) == 1


def write_within(path, position):
    with path.open("r+b") as file:
        file.seek(position)
        file.write(b"\x5a" * 16)


@pytest.mark.parametrize("hidden", [False, True], ids=["", "with its modification time put back"])
def test_a_changed_file_is_read_again(large, hidden):
    os.utime(large, ns=(OLD_NS, OLD_NS))
    before = sha256_of_file(large)
    write_within(large, NUM_BYTES // 4)
    if hidden:
        os.utime(large, ns=(OLD_NS, OLD_NS))
        assert large.stat().st_mtime_ns == OLD_NS
    assert sha256_of_file(large) != before


def test_another_file_in_its_place_is_read(tmp_path, large):
    other = tmp_path / "other.bin"
    other.write_bytes(os.urandom(NUM_BYTES))
    os.utime(other, ns=(OLD_NS, OLD_NS))
    os.utime(large, ns=(OLD_NS, OLD_NS))
    before = sha256_of_file(large)
    other.replace(large)
    assert sha256_of_file(large) != before


@pytest.mark.parametrize("field", ["num_bytes", "mtime_ns", "ctime_ns", "inode", "device"])
def test_each_part_of_a_files_state_counts(large, field, hashed):
    sha256_of_file(large)
    record = json.loads(record_of(large).read_text())
    del record["check"]
    record["state"][field] += 1
    record_of(large).write_text(json.dumps({**record, "check": file_hashes.checksum(record)}))
    sha256_of_file(large)
    assert len(hashed) == 2


def test_nothing_is_remembered_of_a_file_written_just_now(large, hashed, monkeypatch):
    """Another write within the same tick of the clock would leave its times as they are."""
    monkeypatch.setattr(file_hashes, "SETTLED_NS", 2_000_000_000)
    sha256_of_file(large)
    os.utime(large, ns=(OLD_NS, OLD_NS))  # its change time is now
    sha256_of_file(large)
    assert len(hashed) == 2
    later_ns = time.time_ns() + 2_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: later_ns)
    for _ in range(3):
        sha256_of_file(large)
    assert len(hashed) == 3


def test_nothing_is_remembered_of_a_file_written_while_it_is_read(large, hashed, monkeypatch):
    written = []

    def write_once(path, state, *others):
        written.append(state)

    monkeypatch.setattr(file_hashes, "remember", write_once)
    real_fstat = os.fstat

    def fstat(number):
        found = real_fstat(number)
        if stat.S_ISREG(found.st_mode) and found.st_size == NUM_BYTES:
            write_within(large, 0)
        return found

    monkeypatch.setattr(os, "fstat", fstat)
    sha256_of_file(large)
    assert len(hashed) == 1
    assert not written


def test_rehash_forgets_what_was_remembered_before(large, hashed):
    sha256_of_file(large)
    rehash_from_now()
    for _ in range(3):
        sha256_of_file(large)
    assert len(hashed) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "{}",
        lambda text: "\0" * 40,
        lambda text: text.replace('"sha256": "', '"sha256": "0'),
        lambda text: json.dumps({**json.loads(text), "sha256": "0" * 64}),
        lambda text: "[" * 100_000,
        lambda text: '{"check": ' + "9" * 5_000 + "}",
    ],
)
def test_a_damaged_record_is_not_believed(large, hashed, damage):
    expected = sha256_of_file(large)
    file = record_of(large)
    file.write_text(damage(file.read_text()))
    assert sha256_of_file(large) == expected
    assert len(hashed) == 2
    assert sha256_of_file(large) == expected
    assert len(hashed) == 2  # it was mended


def test_a_record_that_is_a_folder_or_pipe_is_passed_over(large, hashed):
    expected = sha256_of_file(large)
    record_of(large).unlink()
    os.mkfifo(record_of(large))
    assert sha256_of_file(large) == expected
    record_of(large).unlink()
    record_of(large).mkdir()
    assert sha256_of_file(large) == expected


def test_a_cache_that_cannot_be_written_costs_another_reading(tmp_path, large, hashed, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WIDEDRAFT_CACHE", str(tmp_path / "file" / "cache"))
    assert sha256_of_file(large) == sha256_of_file(large)
    assert len(hashed) == 2


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"WIDEDRAFT_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/widedraft"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/c"}, "/c/.cache/widedraft"),
        ({"WIDEDRAFT_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/widedraft"),
    ],
)
def test_where_hashes_are_remembered(monkeypatch, variables, expected):
    for name in ("WIDEDRAFT_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(cache_folder()) == expected


def test_a_user_without_a_home_has_no_cache(large, hashed, monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("WIDEDRAFT_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(file_hashes.Path, "home", homeless)
    assert sha256_of_file(large) == sha256_of_file(large)
    assert len(hashed) == 2


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    for name, words in (("pipe", "is a pipe"), ("folder", "is a folder"), ("missing", "cannot be read")):
        with pytest.raises(UserError, match=words):
            sha256_of_file(tmp_path / f"{name}.safetensors")


def test_long_reading_says_how_far_it_is(tmp_path, large, monkeypatch):
    steps = []

    def track(items, *, description, total):
        for item in items:
            steps.append((description, total))
            yield item

    monkeypatch.setattr(file_hashes, "track", track)
    sha256_of_file(large)
    assert steps == []
    monkeypatch.setattr(file_hashes, "LONG_BYTES", NUM_BYTES)
    rehash_from_now()
    sha256_of_files([large, large], description="hashing m")
    num_mib = 2 * NUM_BYTES // MIB
    assert steps == [("hashing m (MiB)", num_mib)] * num_mib
