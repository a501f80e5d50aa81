"""What a recipe with learned masks must and must not say."""

import pytest
from pydantic import ValidationError

from architectures.shapes.section import ArchitectureConfig, MasksConfig
from distill.recipe.recipe import Recipe

LEARNED = {"layers": 2, "method": "learned_masks"}


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ({**LEARNED, "width_method": "flap"}, "must leave out width_method with method: learned_masks"),
        ({**LEARNED, "rescale": True}, "must leave out rescale with method: learned_masks"),
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


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ({"max_duration": "100ba", "target_warmup": "101ba"}, "must be at most architecture.masks.max_duration"),
        ({"lm_weight": 0.0, "kl_weight": 0.0}, "must be > 0 when architecture.masks.lm_weight is 0"),
        (
            {"global_train_batch_size": 2, "device_train_microbatch_size": 3},
            "must be at most architecture.masks.global",
        ),
        ({"max_duration": "1ep"}, "should match pattern"),
    ],
)
def test_values_that_cannot_work_are_refused(masks, message):
    with pytest.raises(ValidationError, match=message):
        MasksConfig.model_validate(masks)


def test_masks_need_text():
    recipe = {"run_name": "r", "target": {"path": "t"}, "architecture": LEARNED, "data": {"self_written_prompts": 1}}
    with pytest.raises(ValidationError, match=r"text must be given"):
        Recipe.model_validate(recipe)
