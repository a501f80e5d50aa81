"""Widths that may be chosen: each with each, cut or left out with the reason, in the names and in the recipe."""

import json
from dataclasses import replace

import pytest
from pydantic import TypeAdapter

from architectures.errors import UserError
from architectures.shapes.serving import serving_problems
from architectures.shapes.shape import NAMED_SHAPES
from distill.choose.ranked.record import Choice
from distill.choose.shapes.candidates import Wanted, asked_shapes
from distill.choose.shapes.settings import ChooseSettings
from distill.choose.shapes.widths import known_width, proportioned_widths
from distill.recipe.recipe import load_recipe, save_recipe
from tests.distill.choose.asked import candidates_of, run_choose

LLAMA = NAMED_SHAPES["llama-7b"].shape
GROUPED = replace(LLAMA, hidden=576, intermediate=1536, heads=9, kv_heads=3, head_dim=64)


def names(candidates):
    return [each.name for each in candidates]


def test_every_depth_has_every_width_and_the_recipes_own_is_not_named(recipe, source, tmp_path):
    """The recipe has 96 neurons, and the target's 64 channels and 4 heads."""
    found = candidates_of(recipe, source, [1, 2], hidden=["0.5x", "all"], intermediate=[96, 128])
    assert names(found) == [
        f"{layers}-layers{words}"
        for layers in (1, 2)
        for words in ("-32-hidden", "-32-hidden-128-intermediate", "", "-128-intermediate")
    ]
    narrow, *_, whole = found
    assert (narrow.shape.hidden, narrow.shape.intermediate, narrow.shape.heads) == (32, 96, source.heads)
    assert (whole.shape.hidden, whole.shape.intermediate) == (64, 128)
    assert narrow.body == narrow.name
    for each in found:
        save_recipe(each.recipe, tmp_path / "one.yaml")
        assert load_recipe(tmp_path / "one.yaml") == each.recipe


def test_key_value_heads_follow_the_heads_but_the_recipes_own(recipe_file, source):
    """Of the target four heads share two key/value heads; this recipe keeps both of them beside two heads."""
    recipe = load_recipe(recipe_file, ["architecture.heads=2", "architecture.kv_heads=2"])
    found = candidates_of(recipe, source, [1], heads=[2, "all"])
    assert [(each.name, each.shape.heads, each.shape.kv_heads) for each in found] == [
        ("1-layers", 2, 2),
        ("1-layers-4-heads", 4, 2),
    ]
    [half] = candidates_of(load_recipe(recipe_file), source, [1], heads=["0.5x"])
    assert (half.shape.heads, half.shape.kv_heads) == (2, 1)


def test_of_several_widths_those_that_cannot_be_cut_are_told(recipe, source):
    wanted = Wanted(layers=[1], widths={"hidden": [34, 64], "heads": [4, 2]})
    asked = asked_shapes(recipe, source, wanted)
    assert names(asked.candidates) == ["1-layers-34-hidden-2-heads", "1-layers-2-heads", "1-layers"]
    [out] = asked.left_out
    assert (out.candidate, out.rule) == ("1-layers-34-hidden", "cannot be cut")
    assert "hidden 34 is no multiple of 4 heads" in out.reason
    with pytest.raises(UserError, match="hidden 34 is no multiple of 4 heads"):
        asked_shapes(recipe, source, Wanted(layers=[1], widths={"hidden": [34]}))
    with pytest.raises(UserError, match="as all of them: "):
        asked_shapes(recipe, source, Wanted(layers=[1], widths={"hidden": [33, 34]}))
    with pytest.raises(UserError, match="exceeds the target in layers 99"):
        asked_shapes(recipe, source, Wanted(layers=[1, 99], widths={"hidden": [32, 64]}))


@pytest.mark.parametrize(
    ("widths", "message"),
    [
        ({"hidden": [32, "0.5x"]}, "--hidden-sizes: 32 stands there 2 times"),
        ({"intermediate": [129]}, "--intermediate-sizes 129: exceeds the target's 128"),
        ({"heads": ["0.3x"]}, "architecture.heads=0.3x of the target's 4 is 1.2. Heads come whole"),
    ],
)
def test_widths_that_make_no_sense(recipe, source, widths, message):
    with pytest.raises(UserError, match=message):
        candidates_of(recipe, source, [1], **widths)


@pytest.mark.parametrize("word", ["0", "1.5x", "half", "-3", "0.0x"])
def test_words_that_are_no_width(recipe_file, capsys, word):
    assert run_choose(recipe_file, "--hidden-sizes", word) == 2
    assert (
        "--hidden-sizes must be a whole number > 0, or a share of the target's size as 0.5x" in capsys.readouterr().err
    )


def test_words_of_widths():
    assert [known_width(word) for word in ("288", 288, "0.5x", "all")] == [288, 288, "0.5x", "all"]


@pytest.mark.parametrize("target", [LLAMA, GROUPED, replace(LLAMA, hidden=64, intermediate=96, heads=4, kv_heads=2)])
def test_widths_that_shrink_together_can_be_served(target):
    found = proportioned_widths(target)
    assert found[-1] == {}
    shapes = [replace(target, **widths) for widths in found]
    sizes = [shape.parameters() for shape in shapes]
    assert sizes == sorted(set(sizes))
    for shape in shapes:
        assert serving_problems(shape) == []
        assert shape.heads // shape.kv_heads == target.heads // target.kv_heads
        assert all(getattr(shape, name) <= getattr(target, name) for name in ("hidden", "intermediate", "heads"))
    assert replace(LLAMA, hidden=2048, intermediate=5504, heads=16, kv_heads=16) in [
        replace(LLAMA, **widths) for widths in proportioned_widths(LLAMA)
    ]


def test_at_equal_parameters_deep_is_narrow_and_shallow_is_wide(recipe, source):
    """The widest of every depth that one whole layer's parameters allow, and no other."""
    bound = replace(source, layers=1).parameters()
    wanted = Wanted(layers=[1, 3], most_parameters=bound, is_widest=True)
    asked, all_that_fit = (
        asked_shapes(recipe, source, each) for each in (wanted, replace(wanted, is_bound_by_time=True))
    )
    shallow, deep = (each.shape for each in asked.candidates)
    assert shallow.parameters() == bound
    assert deep.layers == 3
    assert deep.hidden < shallow.hidden
    assert deep.parameters() <= bound
    fitting = [each.shape for each in all_that_fit.candidates if each.shape.layers == 3]
    assert len(fitting) > 1
    assert max(fitting, key=lambda shape: shape.parameters()) == deep
    assert {each.rule for each in asked.left_out} == {"too many parameters", "a wider one fits"}
    assert len(asked.candidates) + len(asked.left_out) == 2 * len(proportioned_widths(source))


def test_a_target_whose_layers_alone_can_be_cut_keeps_its_widths(recipe_file, source):
    recipe = load_recipe(recipe_file, ["architecture.intermediate=null"])
    asked = asked_shapes(recipe, replace(source, family="gpt2"), Wanted(layers=[1], widths={"hidden": ["0.5x", "all"]}))
    assert [each.shape.hidden for each in asked.candidates] == [64]


def test_the_settings_say_which_shapes(recipe_file):
    settings = ChooseSettings(
        recipe=recipe_file, layers=(2,), hidden_sizes=("0.5x", 64), most_parameters=9, widest=True
    )
    assert settings.wanted == Wanted(
        layers=(2,),
        widths={"hidden": ("0.5x", 64), "intermediate": (), "heads": ()},
        vocabularies=[],
        most_parameters=9,
        is_widest=True,
    )


@pytest.mark.usefixtures("prospects")
def test_the_winners_widths_are_in_its_recipe_and_everything_is_in_the_record(recipe_file, tmp_path, capsys):
    words = ("--layers", 1, 2, "--hidden-sizes", "0.5x", "all", "--alphas", "1-layers-32-hidden=0.9", "1-layers=0.1")
    assert run_choose(recipe_file, *words, "2-layers=0.1", "2-layers-32-hidden=0.1") == 0
    assert "1-layers-32-hidden promises most. It pays." in capsys.readouterr().out
    chosen = load_recipe(tmp_path / "out" / "choose" / "recipe.yaml")
    assert (chosen.architecture.layers, chosen.architecture.hidden, chosen.architecture.intermediate) == (1, 32, 96)
    assert chosen.run_name == "tiny-1-layers-32-hidden"
    found = json.loads((tmp_path / "out" / "choose" / "choice.json").read_text())
    TypeAdapter(Choice).validate_python(found, strict=False)
    assert found["winner"] == "1-layers-32-hidden"
    assert [each["name"] for each in found["candidates"]] == [
        "1-layers-32-hidden",
        "1-layers",
        "2-layers-32-hidden",
        "2-layers",
    ]
    assert found["candidates"][0]["shape"]["hidden"] == 32
