"""Files and folders are whole or absent."""

import pytest

from architectures.atomic import staged_folder, write_json, write_text


def test_failed_write_leaves_the_old_text(tmp_path):
    path = tmp_path / "a.json"
    write_json({"a": 1}, path)
    with pytest.raises(TypeError):
        write_json({"a": object()}, path)
    with pytest.raises(UnicodeEncodeError):
        write_text("\ud800", path)
    assert path.read_text() == '{\n  "a": 1\n}\n'
    assert list(tmp_path.iterdir()) == [path]


def write_half_a_folder(path):
    with staged_folder(path) as folder:
        (folder / "new").write_text("2")
        raise RuntimeError


def test_staged_folder_appears_whole(tmp_path):
    with staged_folder(tmp_path / "out") as folder:
        (folder / "a").write_text("1")
        assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "a").read_text() == "1"


def test_staged_folder_vanishes_on_error_and_keeps_what_was_there(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("1")
    with pytest.raises(RuntimeError):
        write_half_a_folder(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["old"]


def test_staged_folder_replaces_what_was_there(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("1")
    with staged_folder(tmp_path / "out") as folder:
        (folder / "new").write_text("2")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["new"]
