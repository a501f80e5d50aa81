"""What tests read of a training that ended, its last checkpoint and its log; and how they plant code in one."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from distill.checkpoints import find_checkpoints
from distill.recipe import Recipe


def last_state(recipe: Recipe, folder: str = "checkpoints") -> dict[str, Any]:
    last = find_checkpoints(Path(recipe.run_dir) / folder)[-1]
    return torch.load(last, weights_only=False)["state"]


def weights(recipe: Recipe) -> dict[str, torch.Tensor]:
    return last_state(recipe)["model"]


def metrics(recipe: Recipe, file: str = "metrics.jsonl") -> dict[int, dict[str, float]]:
    """Metrics by batch, from the file logger."""
    merged: dict[int, dict[str, float]] = {}
    for line in (Path(recipe.run_dir) / "logs" / file).read_text().splitlines():
        record = json.loads(line)
        merged.setdefault(record["batch"], {}).update(record)
    return merged


def assert_equal(one: Any, other: Any, name: str = "") -> None:
    assert type(one) is type(other), name
    if isinstance(one, dict):
        assert one.keys() == other.keys(), name
        for key in one:
            assert_equal(one[key], other[key], f"{name}.{key}")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), name
    else:
        assert one == other, name


class Touch:
    """Unpickling it runs a command."""

    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.file}",)


def in_a_pickle(saved: dict[str, Any], mark: Path) -> None:
    saved["state"]["run_name"] = Touch(mark)


def plant(path: Path, what: Callable[[dict[str, Any], Path], None], mark: Path) -> None:
    saved = torch.load(path, weights_only=False)
    what(saved, mark)
    torch.save(saved, path)
