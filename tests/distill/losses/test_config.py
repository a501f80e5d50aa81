"""Recipe keys of the loss: what is accepted, what is refused and in which words, and that a saved recipe loads back."""

import pytest

from distill.recipe.recipe import load_recipe

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


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("distill.loss=jsd", "distill.loss"),
        ("distill.loss=[{name: forward_kl, beta: 0.5}]", "distill.loss[0].beta"),
        ("distill.loss=[{name: jensen_shannon, beta: 1.0}]", "distill.loss[0].beta"),
        ("distill.loss=[{name: forward_kl, wieght: 2}]", "distill.loss[0].wieght"),
        ("distill.loss=[{name: jsd}]", "distill.loss[0].name"),
    ],
)
def test_mistakes_are_named(mistakes, override, key):
    [line] = mistakes(RECIPE, override)
    assert f": {key} " in line


def test_a_temperature_is_read_if_one_loss_reads_it(tmp_path):
    both = "distill.loss=[{name: cross_entropy}, {name: forward_kl}]"
    assert load(tmp_path, both, "distill.temperature=2.0").distill.temperature == 2.0
