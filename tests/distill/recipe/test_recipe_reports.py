"""Which of several mistakes in a recipe are told, and at which line; and files that are no recipe."""

import pytest

from distill.recipe.recipe import RecipeError, load_recipe

BASE = """\
run_name: demo
target: {path: somewhere}
architecture: {layers: 2, method: first_last}
data: {self_written_prompts: 100}
"""


def test_all_mistakes_at_once_in_the_order_of_the_lines(mistakes):
    text = BASE.replace("demo", "de mo") + (
        "distill:\n  loss: mse\n  optimizer:\n    lr: -1\n    lr: fast\n  save_interval: ${nope}\n  evl_interval: 1ep\n"
        "eval: {lookaheads: [3, 0], tasks: [{path: 1}, {path: a, num_prompts: 0}]}\n"
    )
    found = mistakes(text, "export.dtype=int4", "data.temperature=-1", "oops")
    assert [line.split(" ")[0] for line in found[:8]] == [f"r.yaml:{n}:" for n in (1, 6, 8, 9, 10, 11, 12, 12)]
    assert [line.split(":")[0] for line in found[9:]] == ["command line"] * 3
    assert len(found) == 12


def test_a_mistake_that_follows_from_another_is_not_reported(mistakes):
    assert mistakes(BASE + "variables: {a: '???', b: '${variables.a}'}\n") == [
        "r.yaml:5: variables.a must be given, got ???."
    ]
    (line,) = mistakes(BASE + "distill:\n  scheduler:\n", "distill.scheduler={a")
    assert line.startswith("command line: distill.scheduler={a: distill.scheduler must have a YAML value")


def test_a_mistake_of_the_file_stays_there_when_the_command_line_names_its_key(mistakes):
    (line,) = mistakes(BASE + "seed: 1\nseed: 2\n", "seed=3")
    assert line == "r.yaml:6: seed must stand once, got lines 5 and 6. Keep one."
    (line,) = mistakes(BASE + "distil: {}\n", "distil.loss=x")
    assert line == "r.yaml:5: distil is not a key of a recipe. Did you mean distill?"


def test_list_items_have_their_own_lines(mistakes):
    text = BASE.replace(
        "{self_written_prompts: 100}", "\n  prompts:\n    - path: a\n    - path: b\n      num_prompt: 3"
    )
    (line,) = mistakes(text)
    assert line.startswith("r.yaml:8: data.prompts[1].num_prompt is not a key")


def test_missing_keys_are_named_with_what_they_mean(mistakes):
    assert mistakes("target: {}\nvariables: {}") == [
        (
            "r.yaml: architecture must hold shape, plan, stages or a size (layers, ...). "
            "`widedraft recipes --shapes` lists shapes."
        ),
        (
            "r.yaml: data.self_written_prompts must be > 0 when data.prompts is empty, got 0. "
            "Name at least one source of prompts."
        ),
        "r.yaml: run_name must be given. Name of the run; names its folder and its logs.",
        "r.yaml:1: target.path must be given. A local Hugging Face folder, a hub id, or a *.gguf file.",
    ]


def test_an_empty_file_misses_every_key_that_has_no_default(mistakes):
    assert len(mistakes("")) == 4


@pytest.mark.parametrize(("text", "kind"), [("- a\n- b\n", "list"), ("hello\n", "single value")])
def test_a_file_without_keys(mistakes, text, kind):
    assert mistakes(text) == [
        (
            f"r.yaml:1: the recipe must be YAML (expected `key: value` lines, but got a {kind}). "
            "Mend the line or the one above it."
        )
    ]


def test_text_that_is_not_yaml_is_reported_with_its_line(mistakes):
    assert mistakes(BASE + "eval:\n\tdtype: float32\n") == [
        (
            "r.yaml:6: the recipe must be YAML (found character '\\t' that cannot start any token). "
            "Mend the line or the one above it."
        )
    ]


def test_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "latin.yaml").write_bytes(b"run_name: caf\xe9\n")
    for name, reason in (
        ("absent.yaml", "cannot be read (No such file or directory). Name a recipe, which is a YAML file; `widedraft "),
        (".", "is a folder, not a file. Name a recipe, which is a YAML file; `widedraft "),
        ("latin.yaml", "is not UTF-8 text ('utf-8' codec can't decode byte 0xe9 in position 13: invalid"),
    ):
        path = tmp_path / name
        with pytest.raises(RecipeError) as raised:
            load_recipe(path)
        assert str(raised.value).startswith(f"{path}: {reason}")


def test_interpolations_that_never_end_are_mistakes(mistakes):
    found = mistakes(BASE + "variables:\n  a: ${variables.b}\n  b: ${variables.a}\n  c: ${seeds}\n  d: ${now:}\n")
    assert [line.rsplit(": ", 1)[1] for line in found] == [
        "Recursive interpolation detected.",
        "Recursive interpolation detected.",
        "Interpolation key 'seeds' not found. Did you mean ${seed}?",
        "variables.d must fill in ${key}, ${oc.env:NAME} or ${oc.decode:${oc.env:NAME}} alone, got '${now:}'.",
    ]
