"""Candidates are the recipe at other depths, widths and heads; what cannot be is refused or left out."""

from pathlib import Path

import pytest

from distill.choose.candidates import DEPTHS, ChooseSettings, candidates_of
from distill.recipe.recipe import load_recipe, save_recipe
from tests.rejections import rejects


def asked(**values) -> ChooseSettings:
    return ChooseSettings.model_validate({"recipe": Path("r.yaml"), **values}, strict=False)


def names(found) -> list[str]:
    return [each.name for each in found[0]]


def test_depths_of_the_recipe(recipe, source, tmp_path):
    found, out = candidates_of(recipe, source, asked(layers=(3, 1, 1)))
    assert ([one.name for one in found], out) == (["1-layers", "3-layers"], [])
    for one in found:
        assert (one.shape.intermediate, one.shape.hidden) == (96, source.hidden)
        assert one.recipe.run_dir == str(tmp_path / "out" / "choose" / one.name)
        assert (one.recipe.data, one.recipe.distill, one.recipe.seed) == (recipe.data, recipe.distill, recipe.seed)
        save_recipe(one.recipe, tmp_path / "one.yaml")
        assert load_recipe(tmp_path / "one.yaml") == one.recipe
    usual = [f"{depth}-layers" for depth in DEPTHS if depth < source.layers]
    assert names(candidates_of(recipe, source, asked())) == usual


def test_every_width_and_head_with_every_depth(recipe, source):
    settings = asked(layers=(1, 2), hidden_sizes=("0.5x", "all"), vocabularies=("all", 260))
    found, _ = candidates_of(recipe, source, settings)
    bodies = ["1-layers-32-hidden", "1-layers", "2-layers-32-hidden", "2-layers"]
    assert [one.name for one in found] == [name for body in bodies for name in (f"{body}-260-ids", body)]
    assert {(one.shape.hidden, one.shape.head_rows) for one in found} == {(32, 260), (32, 264), (64, 260), (64, 264)}


def test_key_value_heads_follow_heads(recipe, source):
    found, _ = candidates_of(recipe, source, asked(layers=(1,), heads=(2, 4)))
    assert [(one.shape.heads, one.shape.kv_heads) for one in found] == [(2, 1), (4, 2)]


def test_no_candidate_is_larger_than_allowed(recipe, source):
    [small, large], _ = candidates_of(recipe, source, asked(layers=(1, 2)))
    bound = small.shape.parameters()
    kept, [out] = candidates_of(recipe, source, asked(layers=(1, 2), max_parameters=bound))
    assert ([one.name for one in kept], out.candidate) == ([small.name], large.name)
    with rejects("1-layers"):
        candidates_of(recipe, source, asked(layers=(1, 2), max_parameters=bound - 1))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"layers": (99,)}, "layers 99"),
        ({"heads": (8,)}, "--heads 8"),
        ({"vocabularies": (264,)}, "--vocabularies 264"),
    ],
)
def test_sizes_that_cannot_be(recipe, source, values, named):
    with rejects(named):
        candidates_of(recipe, source, asked(**values))


@pytest.mark.parametrize(("key", "value"), [("method", "learned_masks"), ("plan", "plan.json")])
def test_recipes_with_one_shape_only(recipe, source, key, value):
    of_one = recipe.architecture.model_copy(update={key: value})
    with rejects(f"architecture.{key}"):
        candidates_of(recipe.model_copy(update={"architecture": of_one}), source, asked(layers=(1,)))


@pytest.mark.parametrize(
    ("first", "longest", "lengths"),
    [
        ("100ba", None, ["100ba", "200ba", "400ba"]),
        ("100ba", "100ba", ["100ba"]),
        ("100ba", "300ba", ["100ba", "200ba", "300ba"]),
        ("1_000tok", "4000tok", ["1_000tok", "2000tok", "4000tok"]),
    ],
)
def test_training_runs_are_twice_as_long_each_time(first, longest, lengths):
    assert asked(duration=first, longest=longest).lengths == lengths


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (("--longest", "99ba"), "--longest 99ba"),
        (("--longest", "2ep"), "--longest 2ep"),
        (("--duration", "soon"), "--duration"),
        (("--untrained", "--out", "mine.yaml"), "--out"),
        (("--out", "."), "--out ."),
        (("--hidden-sizes", "2x"), "--hidden-sizes"),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(run_choose, tmp_path, capsys, words, flag):
    assert run_choose(*words) == 2
    assert flag in capsys.readouterr().err
    assert not (tmp_path / "out" / "data").exists()
