"""Reading and writing safetensors: every damage is named, and what is written is what safetensors reads."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from architectures.checkpoint import (
    TensorInfo,
    open_weights,
    require_replaceable,
    require_tensors,
    write_weights,
)
from tests.rejections import rejects

TENSORS = {
    "a": torch.arange(15, dtype=torch.bfloat16).reshape(3, 5),
    "b": torch.randn(4, 4),
    "c": torch.randn(7).half(),
    "d": torch.randn(2, 2, dtype=torch.float64),
}
LAYOUT = {name: TensorInfo(tensor.dtype, tuple(tensor.shape)) for name, tensor in TENSORS.items()}


def write(folder: Path, **options) -> Path:
    folder.mkdir(exist_ok=True)
    write_weights(LAYOUT, TENSORS.__getitem__, folder, **options)
    return folder


@pytest.fixture
def sharded(tmp_path):
    return write(tmp_path / "sharded", max_shard_bytes=64)


def equal(found: dict, expected: dict) -> bool:
    return found.keys() == expected.keys() and all(
        found[name].dtype == expected[name].dtype and torch.equal(found[name], expected[name]) for name in expected
    )


def test_metadata_and_alignment_are_as_the_library_writes_them(tmp_path):
    ours = (write(tmp_path) / "model.safetensors").read_bytes()
    save_file(TENSORS, tmp_path / "theirs", metadata={"format": "pt"})
    theirs = (tmp_path / "theirs").read_bytes()

    headers = [json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]) for data in (ours, theirs)]
    assert headers[0] == headers[1]
    assert len(ours) == len(theirs)
    for entry in headers[0].values():
        if "dtype" in entry:
            assert entry["data_offsets"][0] % {"F64": 8, "F32": 4}.get(entry["dtype"], 2) == 0


def test_shards_come_with_an_index_that_transformers_follows(sharded):
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    shards = {number: f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)}
    assert sorted(path.name for path in sharded.glob("*.safetensors")) == [*shards.values()]
    assert index["metadata"] == {"total_size": 30 + 64 + 14 + 32}
    assert index["weight_map"] == {"a": shards[1], "b": shards[2], "c": shards[3], "d": shards[3]}
    for name, shard in index["weight_map"].items():
        assert torch.equal(load_file(sharded / shard)[name], TENSORS[name])


@pytest.mark.parametrize(("limit", "shards"), [(16, ["ab", "c", "d"]), (15, ["a", "bd", "c"]), (1, [*"abcd"])])
def test_a_shard_is_filled_to_its_limit_and_a_large_tensor_gets_its_own(tmp_path, limit, shards):
    layout = {name: TensorInfo(torch.float32, (size,)) for name, size in (("a", 2), ("b", 2), ("c", 9), ("d", 1))}
    write_weights(layout, lambda name: torch.zeros(layout[name].size), tmp_path, max_shard_bytes=limit)

    written = ["".join(sorted(load_file(file))) for file in tmp_path.glob("*.safetensors")]
    assert sorted(written) == shards


@pytest.mark.parametrize("max_shard_bytes", [10**9, 64])
def test_reading_gives_back_what_was_written(tmp_path, max_shard_bytes):
    opened = open_weights(write(tmp_path, max_shard_bytes=max_shard_bytes))

    assert dict(opened.info) == LAYOUT
    assert equal({name: opened.read(name) for name in opened.info}, TENSORS)


@pytest.mark.parametrize("keep", [None, 0, 4, 40, -1])
def test_missing_or_truncated_shard(sharded, keep):
    file = sharded / "model-00003-of-00003.safetensors"
    data = file.read_bytes()
    file.unlink() if keep is None else file.write_bytes(data[:keep])
    with rejects("model-00003-of-00003.safetensors"):
        open_weights(sharded)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda files: files.update(ghost="model-00001-of-00003.safetensors"), "ghost"),
        (lambda files: files.pop("d"), "d"),
    ],
)
def test_an_index_that_disagrees_with_its_shards(sharded, change, named):
    index = sharded / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    change(content["weight_map"])
    index.write_text(json.dumps(content))
    with rejects("index.json", named):
        open_weights(sharded)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"weight_map": ["a"]}',
        '{"weight_map": {}}',
        *(
            f'{{"weight_map": {{"a": {name}}}}}'
            for name in ("3", '"../a.safetensors"', '"/x/a.safetensors"', r'"a\u0000.safetensors"', '"a.bin"')
        ),
    ],
    ids=lambda text: text[:40],
)
def test_broken_index(sharded, text):
    (sharded / "model.safetensors.index.json").write_text(text)
    with rejects("index.json"):
        open_weights(sharded)


def test_pickled_weights_say_how_to_convert(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with rejects("pytorch_model.bin"):
        open_weights(tmp_path)


def test_a_dtype_that_is_not_a_float_is_named(tmp_path):
    save_file({"packed": torch.zeros(4, dtype=torch.uint8)}, tmp_path / "model.safetensors")
    with rejects("packed", "U8"):
        open_weights(tmp_path)


def test_missing_unknown_and_resized_tensors_are_named(tmp_path):
    opened = open_weights(write(tmp_path))
    sizes = {name: info.size for name, info in LAYOUT.items()}

    require_tensors(opened, sizes, ignored=())
    require_tensors(opened, {"a": (3, 5)}, ignored=("b", "c", "d"))
    with rejects("e", "config.json"):
        require_tensors(opened, {**sizes, "e": (1,)}, ignored=())
    with rejects("a", "config.json", [3, 5], [5, 3]):
        require_tensors(opened, {**sizes, "a": (5, 3)}, ignored=())
    with rejects("model.safetensors", "d"):
        require_tensors(opened, {name: sizes[name] for name in "abc"}, ignored=())


def test_a_full_disk_is_noticed_before_writing(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=139))
    with rejects("140 bytes", "139 bytes"):
        write(tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=140))
    write(tmp_path)


def test_only_our_own_folders_are_replaced(tmp_path):
    source, out = tmp_path / "source", tmp_path / "out"
    require_replaceable(out, "plan.json", reading=source)
    out.mkdir()
    require_replaceable(out, "plan.json", reading=source)
    (out / "thesis.tex").touch()
    with rejects(out, "plan.json"):
        require_replaceable(out, "plan.json", reading=source)
    (out / "plan.json").touch()
    require_replaceable(out, "plan.json", reading=source)
    (tmp_path / "link").symlink_to(out)
    for place, reading in (
        (out / ".." / "out", out),
        (out / "thesis.tex", source),
        (out, out / "inside" / "model.gguf"),
        (tmp_path / "link", source),
    ):
        with rejects(place):
            require_replaceable(place, "plan.json", reading=reading)


def test_a_file_that_shrinks_after_it_was_opened_is_an_error(tmp_path):
    save_file({"a": torch.ones(4, 8)}, tmp_path / "model.safetensors")
    weights = open_weights(tmp_path)
    assert weights.read("a").sum() == 32
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.truncate(file.seek(0, 2) - 4)
    with rejects("model.safetensors"):
        weights.read("a")
    with rejects("model.safetensors"):
        weights.read_rows("a", [0, 3])
