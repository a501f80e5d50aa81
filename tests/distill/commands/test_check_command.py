"""`widedraft check` takes several recipes; every other command one."""

import json
from pathlib import Path

import pytest

import widedraft

RECIPE = """\
run_name: NAME
target: {path: TARGET}
architecture: {layers: 2, method: first_last}
data: {prompts: [{path: prompts.jsonl}], num_eval_prompts: 2}
"""


@pytest.fixture
def recipes(tmp_path, tiny_target, monkeypatch):
    """The names of two recipes in the working folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        Path(f"{name}.yaml").write_text(RECIPE.replace("TARGET", str(tiny_target)).replace("NAME", name))
    Path("prompts.jsonl").write_text("\n".join(json.dumps({"prompt": f"Count to {n}."}) for n in range(10)))
    return ["one.yaml", "two.yaml"]


def test_several_recipes_are_checked_each_under_its_heading(recipes, capsys):
    assert widedraft.main(["check", *recipes, "architecture.layers=3", "one.yaml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("==")] == ["== one.yaml", "== two.yaml"]
    assert sum("3 layers" in line for line in lines) == 2


def test_verbose_prints_a_row_per_stage(recipes, capsys):
    lines = []
    for options in ([], ["--verbose"]):
        assert widedraft.main(["check", "one.yaml", *options]) == 0
        lines.append([line for line in capsys.readouterr().out.splitlines() if line.startswith("memory ")])
    assert [len(each) for each in lines] == [1, 3]


def test_a_wrong_recipe_among_several_does_not_hide_the_others(recipes, capsys):
    Path("one.yaml").write_text(Path("one.yaml").read_text().replace("layers: 2", "layers: 9"))
    assert widedraft.main(["check", *recipes]) == 2
    told = capsys.readouterr()
    assert "2 layers" in told.out
    assert told.err.splitlines()[0].startswith("architecture ")
    last = told.err.splitlines()[-1]
    assert last.startswith("1 of 2 ")
    assert "one.yaml" in last


def test_a_word_that_is_neither_recipe_nor_value_is_a_mistake_of_each(recipes, capsys):
    assert widedraft.main(["check", *recipes, "seed"]) == 2
    assert capsys.readouterr().err.count("command line: seed: ") == 2


@pytest.mark.parametrize("command", ["run", "prune", "export", "eval", "choose", "cache"])
def test_other_commands_take_one_recipe(command, recipes, capsys):
    assert widedraft.main([command, *recipes, "seed=1"]) == 2
    assert "two.yaml" in capsys.readouterr().err
    assert not Path("runs").exists()
