"""distill.samples beside everything it meets, as one table: taken, or refused with the reason and the remedy."""

import pytest

from distill.recipe.recipe import Recipe
from distill.recipe.sections.samples import SamplesConfig

SOURCES = ("teacher", "student", "mix_request", "mix_token")


def test_a_name_that_does_not_exist_is_told_with_those_that_do(mistakes):
    text = "run_name: r\ntarget: {path: models/x}\narchitecture: {layers: 2}\ndata: {self_written_prompts: 9}\n"
    [line] = mistakes(text, "distill.samples.source=studnet")
    assert "distill.samples.source" in line
    assert "studnet" in line
    assert "mix_request" in line


@pytest.mark.parametrize(
    ("samples", "chances"),
    [
        ({"source": "student"}, [1.0, 1.0, 1.0]),
        ({"source": "mix_token"}, [0.5, 0.5, 0.5]),
        ({"source": "mix_request", "probability": 0.8, "ramp": "10ba"}, [0.0, 0.4, 0.8]),
        ({"source": "mix_request", "probability": 1.0, "begin": 0.5, "ramp": "10ba"}, [0.5, 0.75, 1.0]),
        ({"source": "mix_request", "probability": 0.8, "ramp": "1dur"}, [0.0, 0.8, 0.8]),
    ],
    ids=str,
)
def test_the_probability_rises_from_begin_and_stays(samples, chances):
    config = SamplesConfig(**samples)
    assert [config.probability_after(passed) for passed in (0, 5, 99)] == pytest.approx(chances)


def test_a_recipe_with_samples_is_saved_and_read_again(tmp_path):
    from distill.recipe.recipe import load_recipe, save_recipe

    recipe = Recipe.model_validate(
        {
            "run_name": "r",
            "target": {"path": "models/x"},
            "architecture": {"layers": 2},
            "data": {"self_written_prompts": 9},
            "distill": {"samples": {"source": "mix_token", "ramp": "0.5dur"}},
        }
    )
    save_recipe(recipe, tmp_path / "saved.yaml")
    assert load_recipe(tmp_path / "saved.yaml") == recipe
