import json
import os

import pytest

from architectures.files import parse_json, read_json, read_json_object, read_text
from tests.rejections import rejects


def test_text_is_read_and_its_byte_order_mark_passed_over(tmp_path):
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbf{}")
    assert read_text(tmp_path / "a") == "{}"
    assert read_json_object(tmp_path / "a", "Mend it.") == {}


def test_a_pipe_and_a_file_too_large_for_its_kind_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "big").open("wb") as file:
        file.truncate(3 << 30)
    for name in ("pipe", "big"):
        with rejects(name, "Mend it."):
            read_json(tmp_path / name, "Mend it.")


@pytest.mark.parametrize("name", [".", "absent", "a\0b", "x" * 5000])
def test_what_is_no_file_is_named(tmp_path, name):
    with rejects(name.split("\0")[0]):
        read_text(tmp_path / name)


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, "{", b"\xff{}"])
def test_json_is_read_or_refused_with_one_message(text):
    with rejects("a:1:", "Mend it."):
        parse_json(text, "a:1", "Mend it.")


def test_another_value_than_an_object_is_refused(tmp_path):
    (tmp_path / "list.json").write_text(json.dumps([1]))
    with rejects("list.json", "Mend it."):
        read_json_object(tmp_path / "list.json", "Mend it.")
