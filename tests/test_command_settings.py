"""Every setting of every command: shown with its default, refused out of its range, named as the others name it."""

import re
from typing import Any

import pytest

import widedraft
from architectures.files.section import Section
from architectures.settings.flags import flag_of, flag_told, options_of

NEEDED = {
    "--target": "a", "--draft": "b", "--drafts": "b", "--prompts": "gsm8k", "--to": "out",
    "--engine": "transformers", "--repo-id": "a/b", "--tokenizer": "a", "--form": "whole",
}  # fmt: skip
OUT_OF_RANGE = {
    "integer": ["-1", "9" * 5000, "10000000000000000", "x", "", "1.5"],
    "number": ["nan", "inf", "1e400", "-1", "x", ""],
}


def settings_of(stage: str) -> type[Section]:
    return widedraft.STAGES[stage].settings


def schemas(stage: str) -> dict[str, list[dict[str, Any]]]:
    """The schemas of which a value of each setting meets one; of a list those of its items."""
    schema = settings_of(stage).model_json_schema()
    found = {}
    for name, node in schema["properties"].items():
        options = options_of(node, schema)
        found[name] = options_of(options[0]["items"], schema) if "items" in options[0] else options
    return found


EVERY = [(stage, name) for stage in widedraft.STAGES for name in settings_of(stage).model_fields]
RANGED = [
    (stage, name, value)
    for stage in widedraft.STAGES
    for name, options in schemas(stage).items()
    for kind in [options[0].get("type") if "enum" not in options[0] else "choice"]
    for value in OUT_OF_RANGE.get(str(kind), ["no-such-choice"] if any("enum" in one for one in options) else [])
]


def words_for(stage: str) -> list[str]:
    """What a command needs beside a wrong value to come so far as to see it."""
    found = []
    for name, field in settings_of(stage).model_fields.items():
        if field.is_required():
            word = NEEDED.get(flag_of(name), "absent.yaml")
            found += [word] if flag_told(field).is_word else [flag_of(name), word]
    return found


def joined(text: str) -> str:
    """The text without what the breaking of lines may add or take."""
    return re.sub(r"[-\s]", "", text)


@pytest.mark.parametrize("stage", widedraft.STAGES)
def test_help_shows_every_setting_and_its_default(stage, capsys):
    with pytest.raises(SystemExit):
        widedraft.main([stage, "--help"])
    page = joined(capsys.readouterr().out)
    for name, field in settings_of(stage).model_fields.items():
        told = flag_told(field)
        assert joined(str(told.metavar) if told.is_word else flag_of(name)) in page
        default = field.default if isinstance(field.default, tuple) else (field.default,)
        shown = " ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in default)
        if told.absent or not (field.is_required() or shown in {"", "None", "False"}):
            assert joined(f"(default: {told.absent or shown})") in page, name


@pytest.mark.parametrize(("stage", "name", "value"), RANGED, ids=lambda value: str(value)[:20])
def test_a_value_out_of_range_exits_with_2_and_names_the_flag(stage, name, value, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert widedraft.main([stage, *words_for(stage), f"{flag_of(name)}={value}"]) == 2
    [message] = [line for line in capsys.readouterr().err.splitlines() if line.startswith(flag_of(name))]
    assert message.startswith(f"{flag_of(name)} must be ")
    assert len(message) < 300


@pytest.mark.parametrize(("stage", "name"), EVERY, ids=" ".join)
def test_every_setting_says_what_it_is(stage, name):
    schema = settings_of(stage).model_json_schema()
    node = schema["properties"][name]
    assert node.get("description") or options_of(node, schema)[0].get("description")


SINGULAR = {  # counts, and words that end so
    "num_threads", "num_prompts", "max_new_tokens", "repeats", "samples", "rounds", "most_parameters",
    "most_milliseconds", "checkpoints", "trust_checkpoints", "target_bits", "floors", "nodes",
    "processes",
}  # fmt: skip
LISTS_OF_ANOTHER_NAME = {"gguf", "allow", "draft"}  # a form of a draft, a verb, and --draft as everywhere


@pytest.mark.parametrize(("stage", "name"), EVERY, ids=" ".join)
def test_what_holds_several_values_is_a_plural_and_nothing_else_is_one_of_them(stage, name):
    field, node = settings_of(stage).model_fields[name], settings_of(stage).model_json_schema()["properties"][name]
    holds_several = any(one.get("type") == "array" for one in options_of(node, {}))
    if name not in LISTS_OF_ANOTHER_NAME and not flag_told(field).is_word:
        assert holds_several == (name.endswith("s") and name not in SINGULAR)


def test_one_name_means_one_thing():
    found: dict[str, set[str]] = {}
    for stage in widedraft.STAGES:
        for name, options in schemas(stage).items():
            found.setdefault(name, set()).add(str(options[0].get("type")))
    assert {name: types for name, types in found.items() if len(types) > 1} == {}


def test_seeds_and_parameters_have_bounds_of_their_own(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert widedraft.main(["choose", "absent.yaml", "--most-parameters", "1000000000000"]) == 2
    assert "absent.yaml: cannot be read" in capsys.readouterr().err
    assert widedraft.main(["benchmark", "--target", "a", "--draft", "b", "--seed", "4294967296"]) == 2
    assert capsys.readouterr().err == "--seed must be a whole number >= 0 and < 4294967296, got 4294967296.\n"


def test_every_mistake_is_told_at_once(capsys):
    words = ["--target", "", "--draft", "b", "--lookaheads", "1", "0", "--confidence", "2", "--dtype", "int4"]
    assert widedraft.main(["benchmark", *words]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "--target must be text that is not empty, got ''.",
        "--lookaheads must be a whole number >= 1 and <= 1000000, got 0.",
        "--dtype must be float32 or bfloat16 or float16 or auto, got int4.",
        "--confidence must be a number > 0 and < 1, got 2.",
    ]
