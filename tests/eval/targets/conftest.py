"""Every family's random checkpoint, and targets held in every way."""

import pytest

from architectures.families import FAMILIES
from architectures.settings import Holding
from tests.architectures.conftest import FAMILY_SETTINGS, perturb

LAYERS = Holding("layers")


@pytest.fixture(autouse=True)
def _same_kernels(monkeypatch):
    """On CPUs with AVX2 only, whole models multiply by packed weights and targets held otherwise do not."""
    for module in ("eval.models", "eval.large_targets"):
        monkeypatch.setattr(f"{module}.slow_type", lambda: None)


@pytest.fixture(scope="session")
def held_family(make_checkpoint, make_translator):
    """held_family(name): the folder of a family's checkpoint, whose biases and norms differ from layer to layer."""
    made = {}

    def of(name):
        if name not in made:
            is_translator = FAMILIES[name].encoder is not None
            settings = {} if is_translator else {"model_type": name, **FAMILY_SETTINGS.get(name, {})}
            made[name] = perturb((make_translator if is_translator else make_checkpoint)(**settings))
        return made[name]

    return of
