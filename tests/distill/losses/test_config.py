"""Recipe keys of the loss: what is accepted, what is refused and in which words, and that a saved recipe loads back."""

import pytest
import yaml

from distill.formulas.losses import LossTerm, loss_terms
from distill.recipe.recipe import load_recipe, save_recipe

RECIPE = """
run_name: r
target: {path: models/x}
architecture: {layers: 2, method: first_last}
data: {self_written_prompts: 9, num_eval_prompts: 2}
distill: {loss: lk_hybrid}
"""


def load(tmp_path, *overrides):
    path = tmp_path / "r.yaml"
    path.write_text(RECIPE)
    return load_recipe(path, overrides)


def test_a_name_stands_for_one_term(tmp_path):
    assert load(tmp_path).distill.loss == "lk_hybrid"
    assert load(tmp_path).distill.terms == (LossTerm(name="lk_hybrid"),)
    assert loss_terms("reverse_kl") == (LossTerm(name="reverse_kl", weight=1.0),)


def test_terms_take_weights_and_their_own_options(tmp_path):
    recipe = load(tmp_path, "distill.loss=[{name: jensen_shannon, beta: 0.2, weight: 3}, {name: cross_entropy}]")
    assert loss_terms(recipe.distill.loss) == (
        LossTerm(name="jensen_shannon", beta=0.2, weight=3.0),
        LossTerm(name="cross_entropy"),
    )
    assert [term.parameters for term in recipe.distill.loss] == [{"beta": 0.2}, {}]


def test_a_saved_recipe_loads_back_equal(tmp_path):
    recipe = load(
        tmp_path,
        "distill.loss=[{name: lk_hybrid, decay: 2}, {name: kl_mixture}]",
    )
    save_recipe(recipe, tmp_path / "saved.yaml")
    assert load_recipe(tmp_path / "saved.yaml") == recipe
    saved = yaml.safe_load((tmp_path / "saved.yaml").read_text())["distill"]["loss"]
    assert (saved[0]["decay"], saved[1]["forward_weight"]) == (2.0, None)


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("distill.loss=jsd", "distill.loss"),
        ("distill.loss=[]", "distill.loss"),
        ("distill.loss=[{name: forward_kl, beta: 0.5}]", "distill.loss[0].beta"),
        ("distill.loss=[{name: jensen_shannon, beta: 1.0}]", "distill.loss[0].beta"),
        ("distill.loss=[{name: forward_kl, weight: 0}]", "distill.loss[0].weight"),
        ("distill.loss=[{name: forward_kl, wieght: 2}]", "distill.loss[0].wieght"),
        ("distill.loss=[{weight: 2}]", "distill.loss[0].name"),
        ("distill.loss=[{name: jsd}]", "distill.loss[0].name"),
        ("distill.loss=[jsd]", "distill.loss[0]"),
    ],
)
def test_mistakes_are_named(mistakes, override, key):
    [line] = mistakes(RECIPE, override)
    assert f": {key} " in line


def test_a_temperature_is_read_if_one_loss_reads_it(tmp_path):
    both = "distill.loss=[{name: cross_entropy}, {name: forward_kl}]"
    assert load(tmp_path, both, "distill.temperature=2.0").distill.temperature == 2.0
