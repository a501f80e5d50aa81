"""Files and folders are whole or absent, read or named, and hold no secret; `auto` dtypes are the machine's."""

import json
import os
import sys

import pytest

from architectures import files, settings
from architectures.files import (
    masked,
    parse_json,
    partial_path,
    read_json,
    read_json_object,
    read_text,
    remove_partials,
    replacing,
    staged_folder,
    write_json,
    write_text,
)
from architectures.manifest import command
from architectures.settings import has_bfloat16, many_rows_gain
from distill.recipe.recipe import Recipe
from tests.rejections import rejects


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


@pytest.mark.parametrize(
    "word",
    [
        "data.max_new_tokens=64",
        "variables={keys: 3, tokens: 4, author: me}",
        "distill.loggers.wandb.init_kwargs.api_key=${oc.env:WANDB_API_KEY}",
        "distill.loggers={wandb: {init_kwargs: {api_key: '${oc.env:KEY}'}}}",
        "monkey=3",
    ],
)
def test_what_is_no_secret_stays(word):
    assert masked(word) == word


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("distill.loggers.wandb.init_kwargs.api_key=sk, 1", "distill.loggers.wandb.init_kwargs.api_key=***"),
        ("variables.PASSWORD=a b", "variables.PASSWORD=***"),
        ("x={wandb: {api_key: sk 1, tags: [a]}}", "x={wandb: {api_key: ***, tags: [a]}}"),
        ('x={"token": "a, b", "n": 1}', 'x={"token": ***, "n": 1}'),
        ("tracking_uri=https://me:pw@host/x", "tracking_uri=https://me:***@host/x"),
    ],
)
def test_what_looks_like_a_secret_is_masked(word, kept):
    assert masked(word) == kept


def test_manifests_have_the_command_without_secrets(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["widedraft", "run", "r.yaml", "variables.api_key=sk-1"])
    assert command() == ["widedraft", "run", "r.yaml", "variables.api_key=***"]


WITHOUT = "processor\t: 0\nmodel name\t: a Xeon with avx512_bf16 in its name only\nflags\t\t: fpu avx512f avx512_vnni\n"


INTEL = "vendor_id\t: GenuineIntel\n"


@pytest.mark.parametrize(
    ("cpuinfo", "devices", "few", "many"),
    [
        (WITHOUT, [], False, False),
        (WITHOUT + "flags\t\t: avx512f avx512_bf16\n", [], True, True),
        (INTEL + "flags\t\t: avx512f avx512_bf16\n", [], True, False),
        (INTEL + "flags\t\t: avx512f avx512_bf16 amx_bf16\n", [], True, True),
        (INTEL + "flags\t\t: avx512f avx512_bf16\n", ["nvidia0"], True, True),
        ("Features\t: fp asimd bf16 i8mm\n", [], True, True),
        ("Features\t: fp asimd ebf16x\n", [], False, False),
        (None, [], False, False),
        (WITHOUT, ["nvidiactl"], False, False),
        (None, ["kfd"], True, True),
    ],
)
def test_bfloat16_needs_a_gpu_or_instructions_and_many_rows_more_than_one_of_intels(
    tmp_path, cpuinfo, devices, few, many
):
    (tmp_path / "dev").mkdir()
    for name in devices:
        (tmp_path / "dev" / name).touch()
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo, encoding="utf-8")
    assert has_bfloat16(tmp_path / "dev", tmp_path / "cpuinfo") is few
    assert many_rows_gain(tmp_path / "dev", tmp_path / "cpuinfo") is many


@pytest.mark.parametrize(
    ("few", "many", "target", "scoring", "precision"),
    [
        (True, True, "bfloat16", "bfloat16", "amp_bf16"),
        (True, False, "float32", "bfloat16", "fp32"),
        (False, False, "float32", "float32", "fp32"),
    ],
)
def test_auto_is_what_the_machine_is_fast_in(monkeypatch, few, many, target, scoring, precision):
    monkeypatch.setattr(settings, "has_bfloat16", lambda: few)
    monkeypatch.setattr(settings, "many_rows_gain", lambda: many)
    recipe = recipe_with("auto", "auto")
    assert (recipe.target.dtype, recipe.eval.dtype, recipe.distill.precision) == (target, scoring, precision)
    assert recipe_with("float16", "amp_bf16").target.dtype == "float16"


def recipe_with(dtype: str, precision: str) -> Recipe:
    """A recipe with these number types."""
    return Recipe(
        run_name="types",
        target={"path": "target", "dtype": dtype},
        architecture={"layers": 2},
        data={"prompts": [{"path": "prompts.jsonl"}]},
        distill={"precision": precision},
        eval={"dtype": dtype},
    )
