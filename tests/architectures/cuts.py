"""Drafts of random checkpoints: the shape of a folder, a plan for it, and what its model computes."""

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel

from architectures.hub import read_config
from architectures.pruning.plan import PruningPlan, plan_pruning
from architectures.pruning.prune import prune_checkpoint
from architectures.requested_shape import ArchitectureConfig
from architectures.shapes import Shape

IDS = torch.arange(3, 35)[None]


def shape_of(folder: Path) -> Shape:
    return Shape.from_config(read_config(folder))


def write_config(folder: Path, without: Collection[str] = (), **entries: Any) -> None:
    """Change a folder's config.json."""
    kept = {key: value for key, value in read_config(folder).items() if key not in without}
    (folder / "config.json").write_text(json.dumps(kept | entries))


def edit_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> dict[str, Tensor]:
    """A folder's tensors, changed and written again."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return tensors


def require_same_tensors(folder: Path, other: Path) -> None:
    """Bit for bit, under the same names."""
    found, expected = (load_file(each / "model.safetensors") for each in (folder, other))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def plan_for(folder: Path, **architecture: Any) -> PruningPlan:
    wanted = {"method": "first_last", "width_method": "random", **architecture}
    return plan_pruning(shape_of(folder), ArchitectureConfig.model_validate(wanted), seed=3)


def load(folder: Path) -> PreTrainedModel:
    opens = AutoModelForSeq2SeqLM if shape_of(folder).encoder_layers else AutoModelForCausalLM
    return opens.from_pretrained(folder, dtype="auto").eval()


def pruned(folder: Path, plan: PruningPlan, out: Path) -> PreTrainedModel:
    """The draft of a plan: it has the shape and the parameters that the plan foretells."""
    prune_checkpoint(folder, plan, out)
    draft = load(out)
    assert shape_of(out) == plan.draft
    assert draft.num_parameters() == plan.draft.parameters()
    return draft


def logits(model: PreTrainedModel) -> Tensor:
    with torch.inference_mode():
        return model.eval()(IDS, use_cache=False).logits
