"""What travels arrives whole or not at all, fits, and keeps its code for Hopper."""

import struct
import tarfile
from dataclasses import replace

import pytest

from benchmarks.gpu import pack
from benchmarks.gpu import pair as pair_stage
from benchmarks.gpu.pack import (
    BrokenError,
    compress,
    divide,
    main,
    only_hopper,
    pair_archives,
    requirements,
    strip_vllm,
)
from benchmarks.gpu.stage import SkippedError
from tests.rejections import rejects

CONTENT = bytes(range(256)) * 9 + b"!"


@pytest.fixture
def keep(tmp_path, monkeypatch):
    monkeypatch.setattr(pack.importlib.metadata, "version", lambda _name: "2.11.0+cu130")
    return tmp_path / "keep"


@pytest.fixture
def packed(tmp_path, monkeypatch):
    """Two archives in calls of 1,000 bytes."""
    monkeypatch.setattr(pack, "tree_bytes", lambda: 500)
    monkeypatch.setattr(pack, "CALL_BYTES", 1500)
    site = tmp_path / "site"
    (site / "package").mkdir(parents=True)
    (site / "package" / "code.py").write_text("x = 1\n")
    compress(site, tmp_path / "ours.tar.xz")
    (tmp_path / "target.gguf").write_bytes(CONTENT)
    carry = tmp_path / "carry"
    divide([tmp_path / "ours.tar.xz", tmp_path / "target.gguf"], carry)
    return carry


def receive(carry, keep) -> int:
    return main(["receive", "--carry", str(carry), "--keep", str(keep)])


def test_calls_are_full_but_not_too_full(packed):
    sizes = [sum(path.stat().st_size for path in folder.glob("*.[0-9]")) for folder in sorted(packed.iterdir())]
    assert len(sizes) >= 3
    assert set(sizes[:-1]) == {1000}
    assert sizes[-1] <= 1000


def test_what_arrives_is_what_was_packed_and_receiving_again_changes_nothing(packed, keep):
    assert receive(packed, keep) == 0
    assert (keep / "target.gguf").read_bytes() == CONTENT
    file = keep / "site" / "package" / "code.py"
    assert file.read_text() == "x = 1\n"
    file.write_text("changed\n")
    assert receive(packed, keep) == 0
    assert file.read_text() == "changed\n"


def test_a_piece_that_was_cut_off_is_received_again(packed, keep):
    assert receive(packed, keep) == 0
    (keep / "target.gguf").unlink()
    (keep / "target.gguf.unpacked").unlink()
    (keep / "carried" / "target.gguf.0").write_bytes(b"short")
    assert receive(packed, keep) == 0
    assert (keep / "target.gguf").read_bytes() == CONTENT


def test_a_new_pack_replaces_the_old_one(packed, keep, tmp_path):
    assert receive(packed, keep) == 0
    (tmp_path / "target.gguf").write_bytes(CONTENT[::-1])
    divide([tmp_path / "ours.tar.xz", tmp_path / "target.gguf"], packed)
    assert receive(packed, keep) == 0
    assert (keep / "target.gguf").read_bytes() == CONTENT[::-1]


@pytest.mark.parametrize("backwards", [False, True])
def test_calls_arrive_one_after_the_other(packed, keep, tmp_path, backwards):
    folders = sorted(packed.iterdir(), reverse=backwards)
    for number, folder in enumerate(folders, start=1):
        here = tmp_path / f"call{number}" / folder.name
        here.parent.mkdir()
        folder.rename(here)
        assert receive(here.parent, keep) == 0
        assert (keep / "target.gguf").is_file() == (number == len(folders))
    assert (keep / "target.gguf").read_bytes() == CONTENT


def test_a_pair_arrives_and_its_target_is_imported_once(keep, tmp_path, monkeypatch, setting):
    commands = []
    monkeypatch.setattr(pair_stage, "require_vllm", lambda: None)
    monkeypatch.setattr(pair_stage, "widedraft", lambda *words: commands.append(words))
    here = replace(setting, size="laptop", work=keep / "work-laptop")
    with rejects("pair", error=SkippedError):
        pair_stage.carried_pair(here)
    files = {"t.gguf": CONTENT, "p.jsonl": b"{}", "draft/config.json": b"{}", "draft/draft-Q8_0.gguf": b"x"}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    divide(pair_archives(*(tmp_path / name for name in ("t.gguf", "draft", "p.jsonl")), tmp_path), tmp_path / "carry")
    assert receive(tmp_path / "carry", keep) == 0
    pair = pair_stage.carried_pair(here)
    assert commands == [("import", keep / "pair.gguf", "--to", pair.target)]
    assert (keep / "pair.gguf").read_bytes() == CONTENT
    assert (pair.prompts.read_bytes(), [path.name for path in pair.draft.iterdir()]) == (b"{}", ["config.json"])
    pair.target.mkdir(parents=True)
    (pair.target / "config.json").write_text("{}")
    assert pair_stage.carried_pair(here) == pair
    assert len(commands) == 1


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:5] + b"?" + data[6:]])
def test_a_broken_piece_is_named_and_not_kept(packed, keep, capsys, damage):
    piece = packed / "2" / "target.gguf.1"
    piece.write_bytes(damage(piece.read_bytes()))
    assert receive(packed, keep) == 2
    assert str(piece) in capsys.readouterr().err
    assert not (keep / "carried" / piece.name).exists()
    assert not (keep / "target.gguf").exists()


@pytest.mark.parametrize("what", ["list", "receive"])
def test_nothing_packed_is_an_error(tmp_path, keep, capsys, what):
    assert main([what, "--carry", str(tmp_path), "--keep", str(keep)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_another_torch_is_reported_before_anything_is_unpacked(packed, keep, monkeypatch, capsys):
    monkeypatch.setattr(pack.importlib.metadata, "version", lambda _name: "2.12.0")
    assert receive(packed, keep) == 2
    assert "2.12.0" in capsys.readouterr().err
    assert not keep.exists()


def fatbin(*entries: tuple[int, int, bytes]) -> bytes:
    """A container of (kind, architecture, payload)."""
    body = b""
    for kind, architecture, payload in entries:
        header = struct.pack("<HHIQ", kind, 0x101, 64, len(payload)).ljust(28, b"\1") + struct.pack("<I", architecture)
        body += header.ljust(64, b"\2") + payload
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_only_code_for_hopper_is_kept():
    cubin, ptx = 2, 1
    compiled = fatbin((cubin, 80, b"a" * 8), (cubin, 90, b"b" * 8), (ptx, 80, b"c" * 16), (cubin, 120, b"d" * 8))
    portable = fatbin((cubin, 80, b"e" * 8), (ptx, 80, b"f" * 8))
    chance = struct.pack("<IHH", 0xBA55ED50, 7, 7)  # the magic number's bytes by chance
    library = b"head" + compiled + bytes(8) + portable + chance + b"tail"
    expected = library
    for payload in (b"a" * 8, b"c" * 16, b"d" * 8, b"e" * 8):
        expected = expected.replace(payload, bytes(len(payload)))
    assert only_hopper(library) == expected


def test_vllm_keeps_python_files_and_four_libraries(tmp_path):
    kept = ["vllm/a.py", "vllm/configs/b.json", "vllm/_C_stable_libtorch.abi3.so", "vllm/x/_vllm_fa3_C.abi3.so"]
    kept += ["other/data.bin", "vllm-0.25.1.dist-info/METADATA"]
    gone = ["vllm/vllm-rs", "vllm/x/_vllm_fa2_C.abi3.so", "vllm/third_party/include/c.py", "vllm/d.cuh", "other/e.a"]
    for name in kept + gone:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    strip_vllm(tmp_path)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == set(kept)


@pytest.mark.parametrize("listed", ["vllm.txt", "wheels.txt"])
def test_every_package_has_one_version(listed):
    lines = requirements(listed)
    names = [line.partition("==")[0] for line in lines]
    assert len(set(names)) == len(names) > 15
    assert all(line.count("==") == 1 for line in lines)


def test_both_lists_agree_where_they_overlap():
    ours, vllm = (dict(line.split("==") for line in requirements(listed)) for listed in ("wheels.txt", "vllm.txt"))
    assert {name: ours[name] for name in ours.keys() & vllm.keys()} == {name: vllm[name] for name in ours.keys() & vllm}


def test_a_package_without_a_version_is_named(monkeypatch, tmp_path):
    (tmp_path / "own.txt").write_text("# a comment\npydantic\nno-such-package\n")
    monkeypatch.setattr(pack, "__file__", str(tmp_path / "pack.py"))
    with rejects("no-such-package", "own.txt", error=BrokenError):
        requirements("own.txt")


def test_an_archive_is_the_same_each_time(tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / "a.py").write_text("a\n")
    compress(site, tmp_path / "1.tar.xz")
    (site / "a.py").touch()
    compress(site, tmp_path / "2.tar.xz")
    assert (tmp_path / "1.tar.xz").read_bytes() == (tmp_path / "2.tar.xz").read_bytes()
    with tarfile.open(tmp_path / "1.tar.xz") as tar:
        assert {member.name for member in tar.getmembers()} == {".", "./a.py"}
