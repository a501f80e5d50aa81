"""What travels comes whole or not at all, and fits."""

import json

import pytest

from benchmarks.gpu import carry
from benchmarks.gpu.carry import TARGET_NAME, WHEELS, BrokenError, listed, main, parted, pinned, write_manifest

CONTENT = bytes(range(256)) * 9 + b"!"


@pytest.fixture
def packed(tmp_path):
    """A folder as `pack` leaves it, with one small wheel."""
    folder = tmp_path / "carry"
    for number, (call, half) in enumerate(zip(carry.CALLS, parted(CONTENT, beside=0), strict=True), start=1):
        (folder / call).mkdir(parents=True)
        (folder / call / f"{TARGET_NAME}.{number}").write_bytes(half)
    (folder / "first" / "some-1.0-py3-none-any.whl").write_bytes(b"wheel")
    write_manifest(folder)
    return folder


def receive(folder, keep) -> int:
    return main(["receive", "--carry", str(folder), "--keep", str(keep)])


def without(folder, call):
    for path in (folder / call).iterdir():
        path.unlink()


def test_both_calls_together_are_what_was_packed(packed, tmp_path, capsys):
    keep = tmp_path / "keep"
    assert receive(packed, keep) == 0
    assert (keep / TARGET_NAME).read_bytes() == CONTENT
    assert (keep / "carried" / "some-1.0-py3-none-any.whl").read_bytes() == b"wheel"
    assert "everything came: 3 files" in capsys.readouterr().out


@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")])
def test_the_calls_may_come_one_after_the_other(packed, tmp_path, capsys, order):
    keep, content = tmp_path / "keep", {}
    for call in carry.CALLS:
        content[call] = {path.name: path.read_bytes() for path in (packed / call).iterdir()}
        without(packed, call)
    for place, call in enumerate(order):
        for name, data in content[call].items():
            (packed / call / name).write_bytes(data)
        assert receive(packed, keep) == 0
        said = capsys.readouterr().out
        assert (f".carry/{order[1]}" in said) == (place == 0)
        assert (keep / TARGET_NAME).is_file() == (place == 1)
        without(packed, call)
    assert (keep / TARGET_NAME).read_bytes() == CONTENT


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:5] + b"?" + data[6:]])
def test_a_broken_file_is_named_and_not_kept(packed, tmp_path, capsys, damage):
    path, keep = packed / "second" / f"{TARGET_NAME}.2", tmp_path / "keep"
    path.write_bytes(damage(path.read_bytes()))
    assert receive(packed, keep) == 2
    said = capsys.readouterr().err
    assert path.name in said
    assert "SHA-256" in said
    assert not (keep / "carried" / path.name).exists()
    assert not (keep / TARGET_NAME).exists()


def test_nothing_packed_is_said(tmp_path, capsys):
    assert main(["list", "--carry", str(tmp_path)]) == 2
    assert "benchmarks/gpu.sh --pack" in capsys.readouterr().err


def test_the_list_says_what_fits_beside_the_working_tree(packed, monkeypatch):
    files = json.loads((packed / "first" / "manifest.json").read_text())
    own = sum(file["size"] for file in files if file["call"] == "first")
    monkeypatch.setattr(carry, "tree_bytes", lambda: 1000)
    monkeypatch.setattr(carry, "MOST_BYTES", own + 1000)
    first, second = (line for line in listed(packed).splitlines() if line.startswith(".carry"))
    assert first.endswith(": fits")
    assert second.endswith(": fits")
    monkeypatch.setattr(carry, "MOST_BYTES", own + 999)
    first, second = (line for line in listed(packed).splitlines() if line.startswith(".carry"))
    assert first.endswith("DOES NOT FIT")
    assert second.endswith(": fits")


def test_every_wheel_has_a_version_and_hashes_among_our_requirements():
    names = [line for line in WHEELS.read_text().splitlines() if line and line[0] != "#" and "==" not in line]
    lines = pinned(names)
    assert len(lines) == len(names) > 20
    for name, line in zip(names, lines, strict=True):
        assert line.startswith(f"{name}==")
        assert "--hash=sha256:" in line
        assert ";" not in line
    with pytest.raises(BrokenError, match=r"no-such-package.*wheels\.txt"):
        pinned(["mosaicml", "no-such-package"])


@pytest.mark.parametrize("beside", [0, 3, 2 * len(CONTENT)])
def test_both_calls_carry_as_much_where_they_can(beside: int) -> None:
    first, second = parted(CONTENT, beside=beside)
    assert first + second == CONTENT
    assert abs(len(first) + beside - len(second)) <= 1 or not first
