"""Recipe keys of the loss: what is accepted, what is refused and in which words, and that a saved recipe loads back."""

import pytest
import yaml

from distill.formulas.losses import loss_term, loss_terms
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
    assert load(tmp_path).distill.terms == (loss_term("lk_hybrid"),)
    assert load(tmp_path).distill.token_selection is None
    assert loss_terms("reverse_kl") == (loss_term("reverse_kl", weight=1.0),)


def test_terms_take_weights_and_their_own_options(tmp_path):
    recipe = load(tmp_path, "distill.loss=[{name: jensen_shannon, beta: 0.2, weight: 3}, {name: cross_entropy}]")
    assert loss_terms(recipe.distill.loss) == (
        loss_term("jensen_shannon", beta=0.2, weight=3.0),
        loss_term("cross_entropy"),
    )
    assert [term.options for term in recipe.distill.loss] == [{"beta": 0.2}, {}]


def test_a_null_option_is_left_out(tmp_path):
    """As recipes that an earlier version resolved have every option of every loss."""
    nulls = "beta: null, skew: null, decay: null, forward_weight: null"
    recipe = load(tmp_path, f"distill.loss=[{{name: jensen_shannon, {nulls}}}, {{name: forward_kl, {nulls}}}]")
    assert recipe.distill.terms == (loss_term("jensen_shannon"), loss_term("forward_kl"))
    assert [term.options for term in recipe.distill.terms] == [{"beta": 0.5}, {}]


def test_a_saved_recipe_loads_back_equal(tmp_path):
    recipe = load(
        tmp_path,
        "distill.loss=[{name: lk_hybrid, decay: 2}, {name: kl_mixture}]",
        "distill.token_selection={reference: runs/a/draft}",
    )
    save_recipe(recipe, tmp_path / "saved.yaml")
    assert load_recipe(tmp_path / "saved.yaml") == recipe
    assert recipe.distill.token_selection.fraction == 0.4
    saved = yaml.safe_load((tmp_path / "saved.yaml").read_text())["distill"]["loss"]
    assert saved == [{"name": "lk_hybrid", "weight": 1.0, "decay": 2.0}, {"name": "kl_mixture", "weight": 1.0}]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("distill.loss=jsd", "distill.loss must be forward_kl or reverse_kl or kl_mixture or jensen_shannon"),
        ("distill.loss=[]", "distill.loss must be"),
        (
            "distill.loss=[{name: forward_kl, beta: 0.5}]",
            (
                "distill.loss[0].beta must be left out when name is forward_kl, got 0.5. Keys are then name, weight; "
                "beta is one when name is jensen_shannon. Leave it out (null on the command line)."
            ),
        ),
        (
            "distill.loss=[{name: jensen_shannon, skew: 0.5}]",
            (
                "distill.loss[0].skew must be left out when name is jensen_shannon, got 0.5. Keys are then name, "
                "weight, beta; skew is one when name is skewed_forward_kl or skewed_reverse_kl. Leave it out"
            ),
        ),
        ("distill.loss=[{name: jensen_shannon, beta: 1.0}]", "distill.loss[0].beta must be a number > 0 and < 1"),
        ("distill.loss=[{name: forward_kl, weight: 0}]", "distill.loss[0].weight must be a number > 0, got 0."),
        ("distill.loss=[{name: forward_kl, wieght: 2}]", "Did you mean distill.loss[0].weight?"),
        ("distill.loss=[{weight: 2}]", "distill.loss[0].name must be given. A loss of docs/losses.md."),
        ("distill.loss=[{name: jsd}]", "distill.loss[0].name must be forward_kl or reverse_kl or kl_mixture or"),
        ("distill.loss=[{name: jsd}]", "or cross_entropy, got 'jsd'."),
        ("distill.loss=[{name: null}]", "or cross_entropy, got null."),
        (
            "distill.loss=[jsd]",
            "distill.loss[0] must be a section (name, weight, forward_weight, beta, skew, decay), got 'jsd'.",
        ),
        ("distill.token_selection={fraction: 0.4}", "distill.token_selection.reference must be given."),
        (
            "distill.token_selection={fraction: 1.0, reference: a}",
            "distill.token_selection.fraction must be a number > 0 and < 1, got 1.0.",
        ),
    ],
)
def test_mistakes_are_named(mistakes, override, expected):
    lines = mistakes(RECIPE, override)
    assert len(lines) == 1, lines
    assert expected in lines[0]


def test_a_temperature_that_nothing_reads_is_refused(mistakes, tmp_path):
    [line] = mistakes(RECIPE, "distill.loss=cross_entropy", "distill.temperature=2.0")
    assert "distill.temperature must be 1 when distill.loss is cross_entropy alone, got 2.0." in line
    both = "distill.loss=[{name: cross_entropy}, {name: forward_kl}]"
    assert load(tmp_path, both, "distill.temperature=2.0").distill.temperature == 2.0
