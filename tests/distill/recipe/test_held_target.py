"""What a recipe cannot ask of a target that is not whole in memory, or in fewer bits."""

import pytest

from distill.recipe.recipe import Recipe, load_recipe
from distill.run import Run, recipe_hash, target_record
from distill.stage_inputs import configured_inputs
from tests.rejections import rejects

RECIPE = """
run_name: held
target: {{path: {target}}}
architecture: {{layers: 2, method: evenly_spaced}}
data: {{prompts: [{{path: {target}/config.json}}]}}
distill: {{teacher: {{source: cache}}}}
"""


@pytest.fixture
def recipe_with(tiny_target, tmp_path):
    def load(*words) -> Recipe:
        file = tmp_path / "recipe.yaml"
        file.write_text(RECIPE.format(target=tiny_target))
        return load_recipe(file, [f"run_dir={tmp_path / 'run'}", *words])

    return load


def test_where_the_weights_are_moves_no_fingerprint_and_bits_do(recipe_with):
    plain, layers, packed = recipe_with(), recipe_with("target.placement=layers"), recipe_with("target.bits=4")
    assert recipe_hash(plain) == recipe_hash(layers) != recipe_hash(packed)
    assert configured_inputs(plain) == configured_inputs(layers)
    assert configured_inputs(packed) == {**configured_inputs(plain), "target.bits": 4}
    assert target_record(layers.target) == target_record(plain.target)
    assert target_record(packed.target)["bits"] == 4


def test_a_cap_that_holds_no_layer_is_refused_before_a_stage_begins(recipe_with):
    run = Run.of(recipe_with("target.placement=layers", "target.device_memory_gib=0.00001"))
    with rejects("device_memory_gib", 1e-05):
        run.begin()
