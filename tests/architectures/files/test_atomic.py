"""Files and folders are whole or absent."""

import pytest

from architectures import files
from architectures.files import partial_path, remove_partials, replacing, staged_folder, write_json, write_text


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


def test_staged_folder_appears_whole_in_place_of_what_was_there(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("1")
    with staged_folder(tmp_path / "out") as folder:
        (folder / "new").write_text("2")
        assert (tmp_path / "out" / "old").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["new"]


def test_staged_folder_vanishes_on_error_and_keeps_what_was_there(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("1")
    with pytest.raises(RuntimeError):
        write_half_a_folder(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["old"]


def test_a_link_is_not_written_through_even_if_its_name_was_guessed(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "partial_path", lambda path: path.with_name(f"{path.name}.partial"))
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "recipe.yaml.partial").symlink_to(tmp_path / "precious")
    with pytest.raises(FileExistsError):
        write_text("new", tmp_path / "recipe.yaml")
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_link_in_the_files_own_place_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "a.json").symlink_to(tmp_path / "precious")
    write_json({}, tmp_path / "a.json")
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / "a.json").is_symlink()


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    path = tmp_path / "a"
    with replacing(path) as one, replacing(path) as other:
        one.write(b"one")
        other.write(b"other")
    assert path.read_bytes() == b"one"  # the outer block ended last
    assert list(tmp_path.iterdir()) == [path]


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path):
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "owned").mkdir()
    (tmp_path / "owned" / "lock").touch()
    left = [partial_path(folder / "a") for folder in (tmp_path, tmp_path / "data" / "deep", tmp_path / "owned")]
    for path in left:
        path.touch()
    staged = partial_path(tmp_path / "draft")
    staged.mkdir()
    (staged / "half").touch()
    (tmp_path / "mine.partial").touch()
    (tmp_path / "elsewhere").symlink_to(tmp_path / "owned")
    remove_partials(tmp_path, mark="lock")
    assert [path.exists() for path in (*left, staged, tmp_path / "mine.partial")] == [False, False, True, False, True]
