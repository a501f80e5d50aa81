"""Only regular files inside a folder go to the hub, under names that mean the same everywhere."""

import os
import subprocess

import pytest

from architectures.errors import UserError
from distill.hub.push.local_files import files_to_push, git_blob_id


def test_files_are_named_by_their_path_in_order(write_folder):
    folder = write_folder("draft", {"b/c.json": b"1", "a.json": b"2", "b/.hidden": b"3"})
    assert list(files_to_push(folder)) == ["a.json", "b/.hidden", "b/c.json"]


def test_a_link_within_the_folder_is_the_file_it_leads_to(write_folder):
    folder = write_folder("draft", {"a.json": b"1"})
    (folder / "b.json").symlink_to("a.json")
    assert files_to_push(folder)["b.json"].read_bytes() == b"1"


@pytest.mark.parametrize("end", ["../secret", "/etc/passwd", "sub", "..", "nowhere", "draft"])
def test_a_link_that_leads_elsewhere_is_refused(write_folder, end):
    write_folder("", {"secret": b"s"})
    folder = write_folder("draft", {"sub/a.json": b"1"})
    (folder / "sub" / "link").symlink_to(end if end.startswith("/") else f"../{end}")
    with pytest.raises(UserError, match=r"sub/link: is a link that leads out of the pushed folder or to no file\. Rem"):
        files_to_push(folder)


@pytest.mark.parametrize("name", ["a\\..\\b", "a\nb", " a", "a ", "a\x1b[2J", ".git", ".cache", "a\udcff"])
def test_a_name_that_is_another_elsewhere_is_refused(write_folder, name):
    folder = write_folder("draft", {"a.json": b"1", f"{name}/x": b"2"})
    with pytest.raises(UserError, match="has a name that cannot go to the hub") as caught:
        files_to_push(folder)
    assert str(caught.value).isprintable()


def test_what_is_no_file_is_refused(write_folder):
    folder = write_folder("draft", {"a.json": b"1"})
    os.mkfifo(folder / "pipe")
    with pytest.raises(UserError, match="pipe: is neither a file nor a folder"):
        files_to_push(folder)


def test_nothing_to_push_is_refused(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        files_to_push(tmp_path / "gone")
    with pytest.raises(UserError, match="holds no file"):
        files_to_push(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}\n", bytes(range(256))])
def test_a_blob_id_is_gits(tmp_path, content):
    file = tmp_path / "file"
    file.write_bytes(content)
    said = subprocess.run(["git", "hash-object", file], capture_output=True, text=True, check=True)
    assert git_blob_id(file) == said.stdout.strip()
