"""What a recipe with learned masks must and must not say."""

import pytest
from pydantic import ValidationError

from architectures.requested_shape import ArchitectureConfig, MasksConfig
from tests.rejections import rejects

LEARNED = {"layers": 2, "method": "learned_masks"}


@pytest.mark.parametrize(
    ("architecture", "named"),
    [
        ({**LEARNED, "width_method": "flap"}, ("width_method", "learned_masks")),
        ({**LEARNED, "scores": "s"}, ("scores", "learned_masks")),
        ({**LEARNED, "source": "s"}, ("source", "learned_masks")),
        ({"stages": [3, 2], "method": "learned_masks"}, ("stages", "learned_masks")),
        ({"plan": "p.json", "method": "learned_masks"}, ("plan", "learned_masks")),
        ({"layers": 2, "masks": {"mask_lr": 0.5}}, ("masks", "greedy")),
    ],
)
def test_nothing_is_accepted_and_ignored(architecture, named):
    with rejects(*named, error=ValidationError):
        ArchitectureConfig.model_validate(architecture)


def test_a_length_in_epochs_is_refused():
    with rejects("max_duration", error=ValidationError):
        MasksConfig.model_validate({"max_duration": "1ep"})
