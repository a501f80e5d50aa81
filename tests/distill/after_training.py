"""What tests read of a training that ended, its last checkpoint and its log; and how they plant code in one."""

import json
import os
import resource
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from distill.checkpoints.checkpoint_files import find_checkpoints
from distill.checkpoints.folders import read_tensors
from distill.checkpoints.saving import read_model, read_state
from distill.recipe.recipe import Recipe
from distill.train import train

# Of gradients and losses after one step, between a GPU and the processor or two runs on a GPU.
DEVICE_RTOL = 1e-4  # float32 products of another library, summed in another order, through a few layers
BFLOAT16_RTOL = 5e-2  # products of eight bits against float32; on the processor 1e-2
REPEAT_RTOL = 1e-5  # the same device, whose sums may run in another order; a processor repeats itself bit for bit


def last_state(recipe: Recipe, folder: str = "checkpoints") -> dict[str, Any]:
    """Of the newest checkpoint, a file or a folder."""
    return read_checkpoint(find_checkpoints(Path(recipe.run_dir) / folder)[-1])


def read_checkpoint(path: Path) -> dict[str, Any]:
    """On the processor, whose numbers a GPU's are compared with."""
    return sharded_state(path) if path.is_dir() else torch.load(path, map_location="cpu", weights_only=False)["state"]


def sharded_state(folder: Path) -> dict[str, Any]:
    """What a folder holds, laid out as in a file."""
    state = read_state(folder)
    for optimizer in state["optimizers"].values():
        optimizer["state"] = {}
        for name, tensor in read_tensors(folder, "optimizers").items():
            parameter, kind = name.rsplit(".", 1)
            optimizer["state"].setdefault(parameter, {})[kind] = tensor
    return {**state, "model": OrderedDict(read_model(folder))}


def weights(recipe: Recipe) -> dict[str, torch.Tensor]:
    return last_state(recipe)["model"]


def metrics(recipe: Recipe, file: str = "metrics.jsonl") -> dict[int, dict[str, float]]:
    """Metrics by batch, from the file logger."""
    merged: dict[int, dict[str, float]] = {}
    for line in (Path(recipe.run_dir) / "logs" / file).read_text().splitlines():
        record = json.loads(line)
        merged.setdefault(record["batch"], {}).update(record)
    return merged


def relative_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Euclidean distance over Euclidean norm, all tensors together."""
    assert one.keys() == other.keys()
    distance = sum(float((one[name] - other[name]).double().square().sum()) for name in one) ** 0.5
    return distance / sum(float(one[name].double().square().sum()) for name in one) ** 0.5


def greatest_difference(one: Recipe, other: Recipe) -> float:
    """Of any weight."""
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


def changed(recipe: Recipe, **distill: Any) -> Recipe:
    """The recipe with other keys of its section distill."""
    return recipe.model_copy(update={"distill": recipe.distill.model_copy(update=distill)})


def assert_resumes(straight: Recipe, resumed: Recipe, stop: AbstractContextManager[None]) -> None:
    """A training that is stopped and goes on ends in the bits of one that is not."""
    train(straight)
    with stop:
        train(resumed)
    train(resumed)
    assert_same_end(straight, resumed)


def assert_same_end(one: Recipe, other: Recipe, folder: str = "checkpoints") -> None:
    """Weights and moments of the newest checkpoints, bit for bit."""
    states = [last_state(recipe, folder) for recipe in (one, other)]
    for part in ("model", "optimizers"):
        assert_equal(states[0][part], states[1][part])


def first_moments(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Adam's: after one step a tenth of the gradients, sizes and all, which its update would hide."""
    (optimizer,) = state["optimizers"].values()
    return {name: moments["exp_avg"] for name, moments in optimizer["state"].items()}


def mean_gradients(recipe: Recipe, folder: str = "checkpoints") -> dict[str, torch.Tensor]:
    return first_moments(last_state(recipe, folder))


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


def assert_same_update(one: Recipe, other: Recipe, rtol: float, folder: str = "checkpoints") -> None:
    """The same gradients, by the norm of the difference over the norm, and the same loss of the first step."""
    distance = relative_difference(mean_gradients(one, folder), mean_gradients(other, folder))
    assert distance <= rtol, f"gradients are {distance:.1e} of their norm apart"
    logs = [metrics(recipe, "masks.jsonl" if "mask" in folder else "metrics.jsonl") for recipe in (one, other)]
    assert logs[0][0]["loss/train/total"] == pytest.approx(logs[1][0]["loss/train/total"], rel=rtol)


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


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    """Writing beyond so many bytes of a file fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def train_in_two_sessions(
    recipe: Recipe, stopped: AbstractContextManager[None], batch: int, folder: str = "checkpoints"
) -> None:
    """Train until a stop before the batch's checkpoint, then to the end from the checkpoint of the batch before."""
    with stopped:
        train(recipe)
    assert find_checkpoints(Path(recipe.run_dir) / folder)[-1].name.endswith(f"ba{batch - 1}-rank0.pt")
    train(recipe)
