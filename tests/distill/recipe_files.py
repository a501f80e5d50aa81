"""The text of a smallest recipe; and one of a tiny target as a user has it: a file, beside one of prompts."""

import json
from pathlib import Path

BASE = """\
run_name: demo
target: {path: somewhere}
architecture: {layers: 2, method: first_last}
data: {self_written_prompts: 100}
"""


def write_recipe(
    folder: Path, target: Path, architecture: str, settings: str, *, num_prompts: int = 16, run: str = "run"
) -> Path:
    """The recipe's file; `{prompts}` in its settings is that of the prompts."""
    prompts, file = folder / "prompts.jsonl", folder / "recipe.yaml"
    prompts.write_text("".join(json.dumps({"prompt": f"What comes after {i}?"}) + "\n" for i in range(num_prompts)))
    file.write_text(
        f"run_name: tiny\nrun_dir: {folder / run}\ntarget: {{path: {target}, dtype: float32}}\n"
        f"architecture: {architecture}\n" + settings.format(prompts=prompts)
    )
    return file
