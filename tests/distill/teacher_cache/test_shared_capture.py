"""A cache that several processes write has the files and the manifest of one; what a lost one wrote is kept."""

import pytest

from architectures.manifest import read_manifest
from distill import teacher_cache
from distill.teacher_cache import capture_teacher
from tests.distill.teacher_cache.made import HIDDEN, INPUTS, SAMPLES, TOP_K, finish_into, settings_for
from tests.sharing import by_processes

TEACHERS = {"hidden": HIDDEN, "top_k": TOP_K, "samples": SAMPLES}


@pytest.fixture
def shared(write, tiny_target, examples, tmp_path):
    """shared(teacher, name, count) -> the folder, written by so many processes; a fixture of `write`'s shards."""

    def work(teacher, name, count):
        out, settings = tmp_path / name, settings_for(teacher)

        def capture_share(share):
            finish = finish_into(out, seed=settings.seed)
            how = {"inputs": INPUTS, "finish": finish, "share": share}
            capture_teacher(tiny_target, examples, out, settings, **how)

        by_processes(count, capture_share)
        return out

    return work


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}


def told(folder):
    return {**(read_manifest(folder) or {}), "provenance": None}


@pytest.mark.parametrize("name", TEACHERS)
@pytest.mark.parametrize("count", [2, 3, 20])
def test_several_processes_write_the_cache_of_one(write, shared, name, count):
    alone, together = write(TEACHERS[name], "alone"), shared(TEACHERS[name], "together", count)
    assert len([file for file in files(alone) if file.startswith("train")]) > 3
    assert files(together) == files(alone)
    assert told(together) == told(alone)


def test_shards_of_a_lost_process_are_kept(write, shared, tmp_path, monkeypatch):
    monkeypatch.setattr(teacher_cache, "MAX_SHARD_TOKENS", 25)  # at least four shards
    alone, write_tensors = write(TEACHERS["top_k"], "alone"), teacher_cache.write_tensors

    def stop(tensors, path):
        if path.name == "train-00003.safetensors":
            raise MemoryError("killed")
        return write_tensors(tensors, path)

    monkeypatch.setattr(teacher_cache, "write_tensors", stop)
    with pytest.raises(MemoryError):
        shared(TEACHERS["top_k"], "lost", 2)
    monkeypatch.setattr(teacher_cache, "write_tensors", write_tensors)
    lost = tmp_path / "lost"
    kept = {path.name: path.stat().st_mtime_ns for path in lost.glob("train-*.safetensors")}
    assert "train-00001.safetensors" in kept  # the second process wrote it, and lost the fourth
    shared(TEACHERS["top_k"], "lost", 3)
    assert {name: (lost / name).stat().st_mtime_ns for name in kept} == kept
    assert files(lost) == files(alone)
    assert told(lost) == told(alone)
