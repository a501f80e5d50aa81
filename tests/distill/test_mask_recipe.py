"""What a recipe with learned masks must and must not say."""

import pytest
from pydantic import ValidationError

from architectures.requested_shape import ArchitectureConfig, MasksConfig
from distill.recipe.recipe import Recipe

LEARNED = {"layers": 2, "method": "learned_masks"}


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ({**LEARNED, "width_method": "flap"}, "must leave out width_method with method: learned_masks"),
        ({**LEARNED, "scores": "s"}, "must leave out scores with method: learned_masks"),
        ({**LEARNED, "source": "s"}, "must leave out source with method: learned_masks"),
        ({"stages": [3, 2], "method": "learned_masks"}, "must leave out stages with method: learned_masks"),
        ({"plan": "p.json", "method": "learned_masks"}, "must leave out plan with method: learned_masks"),
        ({"layers": 2, "masks": {"mask_lr": 0.5}}, "must leave out masks with method: greedy"),
    ],
)
def test_nothing_is_accepted_and_ignored(architecture, message):
    with pytest.raises(ValidationError, match=message):
        ArchitectureConfig.model_validate(architecture)


def test_a_length_in_epochs_is_refused():
    with pytest.raises(ValidationError, match="max_duration"):
        MasksConfig.model_validate({"max_duration": "1ep"})


def test_masks_need_text():
    recipe = {"run_name": "r", "target": {"path": "t"}, "architecture": LEARNED, "data": {"self_written_prompts": 1}}
    with pytest.raises(ValidationError, match=r"text must be given"):
        Recipe.model_validate(recipe)
