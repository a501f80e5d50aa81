"""Recipes whose prompts hold enough text to calibrate on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distill.recipe.recipe import Recipe
from tests.distill.recipe_files import tiny_recipe, write_prompts


@pytest.fixture
def make_recipe(tiny_target: Path, tmp_path: Path) -> Callable[..., Any]:
    """make_recipe(name, target={...}, **keys of architecture) -> a recipe in a run folder of its own."""
    data = {"prompts": [{"path": str(write_prompts(tmp_path))}], "num_eval_prompts": 2}

    def make(name: str = "run", target: Any = None, **architecture: Any) -> Recipe:
        calibration = {"tokens": 64, **architecture.pop("calibration", {})}
        method = {} if "plan" in architecture else {"method": "first_last"}
        cut = {**method, **architecture, "calibration": calibration}
        held = {"path": str(tiny_target), "dtype": "float32", **(target or {})}
        distill = {"teacher": {"source": "cache"}}
        return tiny_recipe(tmp_path / name, tiny_target, cut, data, target=held, distill=distill)

    return make
