"""Trained weights and masks become a Hugging Face folder of the target's shape, with the plan that cuts the draft."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from architectures.checkpoints.manifest import MANIFEST_NAME
from architectures.checkpoints.target_files import carry_files
from architectures.checkpoints.weights import TensorInfo, require_replaceable, write_weights
from architectures.families import FAMILIES
from architectures.files.atomic import staged_folder, write_json, write_text
from architectures.masks.gating import fold
from architectures.masks.masks import Masks, middle
from architectures.pruning.draft_config import with_dtype
from architectures.pruning.plan_record import PLAN_NAME, PruningPlan
from architectures.pruning.slicing import tensor_locations
from architectures.shapes.shape import checkpoint_tensors
from architectures.targets.target import read_config
from distill.exporting.export import stored_name


def export_masks(
    student: Mapping[str, Tensor],
    masks: Masks,
    plan: PruningPlan,
    target: Path,
    out: Path,
    *,
    dtype: str,
    finish: Callable[[Path], None],
) -> None:
    """Write the masked student's weights with the final gates multiplied in; the folder appears whole or not at all.

    Args:
        student: Trained weights of the target's shape, by the names of transformers' module.
        masks: Trained with it.
        plan: Made from the masks.
        target: Whose config, tokenizer and generation settings are carried over.
        out: The folder; an earlier one there is replaced.
        dtype: Number type of every weight.
        finish: Called with the folder before it takes its place; writes manifest.json.
    """
    require_replaceable(out, MANIFEST_NAME, reading=target, stage="masks")
    family, cast = FAMILIES[masks.source.family], getattr(torch, dtype)
    trained = {stored_name(name, family): tensor for name, tensor in student.items()}
    locations, gates = tensor_locations(masks.source), masks.final()

    def read(name: str) -> Tensor:
        return fold(trained[name], locations[name], gates, masks.source).to("cpu", cast)

    layout = {name: TensorInfo(cast, size) for name, size in checkpoint_tensors(masks.source).items()}
    with staged_folder(out) as folder:
        write_weights(layout, read, folder)
        write_json(with_dtype(read_config(target), dtype), folder / "config.json")
        write_text(plan.to_json(), folder / PLAN_NAME)
        carry_files(target, folder)
        finish(folder)


def open_kept_fraction(masks: Masks, name: str) -> float:
    """The share of an axis's kept gates that are more open than closed: below 1, training was too short to decide."""
    gates_X = middle(masks.values(name).detach())
    return float((gates_X[masks.kept(name)] > 0.5).double().mean())
