"""The text of a smallest recipe; and one of a tiny target as a user has it: a file, beside one of prompts."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distill.recipe.recipe import Recipe

BASE = """\
run_name: demo
target: {path: somewhere}
architecture: {layers: 2, method: first_last}
data: {self_written_prompts: 100}
"""


def write_prompts(folder: Path, count: int = 20) -> Path:
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"What comes after {i}?"}) + "\n" for i in range(count)))
    return file


def tiny_recipe(
    run: Path, target: Path, architecture: Mapping[str, Any], data: Mapping[str, Any], /, **sections: Any
) -> Recipe:
    """Of a float32 target, with a name as its folder has."""
    return Recipe.model_validate(
        {
            "run_name": run.name,
            "run_dir": str(run),
            "target": {"path": str(target), "dtype": "float32"},
            "architecture": architecture,
            "data": data,
            **sections,
        }
    )


def text_section(path: Path, /, **settings: Any) -> dict[str, Any]:
    """A section `text` of one domain, which is called as its file."""
    return {"domains": [{"name": path.stem, "path": str(path)}], **settings}


def write_recipe(
    folder: Path, target: Path, architecture: str, settings: str, *, num_prompts: int = 16, run: str = "run"
) -> Path:
    """The recipe's file; `{prompts}` in its settings is that of the prompts."""
    prompts, file = write_prompts(folder, num_prompts), folder / "recipe.yaml"
    file.write_text(
        f"run_name: tiny\nrun_dir: {folder / run}\ntarget: {{path: {target}, dtype: float32}}\n"
        f"architecture: {architecture}\n" + settings.format(prompts=prompts)
    )
    return file
