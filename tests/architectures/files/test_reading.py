import json
import os
import re

import pytest

from architectures.errors import UserError
from architectures.files import parse_json, read_json, read_json_object, read_text


def test_text_is_read_and_its_byte_order_mark_passed_over(tmp_path):
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbf{}")
    assert read_text(tmp_path / "a") == "{}"
    assert read_json_object(tmp_path / "a", "Mend it.") == {}


def test_a_pipe_and_a_file_too_large_for_its_kind_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "big").open("wb") as file:
        file.truncate(3 << 30)
    for name in ("pipe", "big"):
        with pytest.raises(UserError, match=rf"{name}: .* Mend it\."):
            read_json(tmp_path / name, "Mend it.")


@pytest.mark.parametrize("name", [".", "absent", "a\0b", "x" * 5000])
def test_what_is_no_file_is_named(tmp_path, name):
    with pytest.raises(UserError, match=re.escape(name.split("\0")[0])):
        read_text(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "a:1: is nested too deeply to be read. Mend it."),
        ("9" * 5000, "a:1: is not valid JSON (Exceeds the limit (4300 digits) for integer string conversion"),
        ("{", "a:1: is not valid JSON (Expecting property name"),
        (b"\xff{}", "a:1: is not valid JSON ("),
    ],
)
def test_json_is_read_or_refused_with_one_message(text, message):
    with pytest.raises(UserError) as raised:
        parse_json(text, "a:1", "Mend it.")
    assert str(raised.value).startswith(message)
    assert str(raised.value).endswith(" Mend it.")


def test_another_value_than_an_object_is_refused(tmp_path):
    (tmp_path / "list.json").write_text(json.dumps([1]))
    with pytest.raises(UserError, match=r"list\.json: holds no JSON object\. Mend it\."):
        read_json_object(tmp_path / "list.json", "Mend it.")
