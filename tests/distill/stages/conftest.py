"""Recipes whose prompts hold enough text to calibrate on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def make_recipe(tiny_target: Path, tmp_path: Path) -> Callable[..., Any]:
    """make_recipe(name, target={...}, **keys of architecture) -> a recipe in a run folder of its own."""
    from distill.recipe.recipe import Recipe

    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"What comes after {i}?"}) + "\n" for i in range(20)))

    def make(name: str = "run", target: Any = None, **architecture: Any) -> Recipe:
        calibration = {"tokens": 64, **architecture.pop("calibration", {})}
        method = {} if "plan" in architecture else {"method": "first_last"}
        return Recipe.model_validate(
            {
                "run_name": name,
                "run_dir": str(tmp_path / name),
                "target": {"path": str(tiny_target), "dtype": "float32", **(target or {})},
                "architecture": {**method, **architecture, "calibration": calibration},
                "data": {"prompts": [{"path": str(prompts)}], "num_eval_prompts": 2},
                "distill": {"teacher": {"source": "cache"}},
            }
        )

    return make
