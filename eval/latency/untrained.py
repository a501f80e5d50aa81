"""Drafts that no one trained, to be timed: how long a step takes depends on a model's shape, not on its weights."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from architectures.draft_vocabulary.head import cut_head
from architectures.errors import UserError
from architectures.pruning.draft_config import draft_config
from architectures.pruning.plan_record import PruningPlan
from architectures.shapes.shape import Shape
from eval.latency.floor import shape_of
from eval.latency.memory import free_bytes


def untrained_models(target: PreTrainedModel, shapes: Sequence[Shape]) -> list[PreTrainedModel]:
    """A model of random weights for every shape, of the target's family and number type, on its device.

    Raises:
        UserError: If they do not all fit beside the target.
    """
    require_memory(target, shapes)
    return [untrained_model(target, shape) for shape in shapes]


def untrained_model(target: PreTrainedModel, shape: Shape) -> PreTrainedModel:
    """One of them, in eval mode."""
    plan = PruningPlan(
        source_layers=tuple(range(shape.layers)), source=source_shape(target), draft=shape, method="none"
    )
    config: dict[str, Any] = draft_config(target.config.get_text_config(decoder=True).to_dict(), plan, None)
    with target.device:
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**config), dtype=target.dtype, trust_remote_code=False
        )
    if shape.head_vocab:
        cut_head(model, torch.arange(shape.head_vocab, device=target.device))
    return model.eval()


def source_shape(target: PreTrainedModel) -> Shape:
    """The target's shape.

    Raises:
        UserError: If its family is not one that drafts are cut from.
    """
    shape = shape_of(target)
    if shape is None:
        raise UserError(
            f"{target.name_or_path}: no untrained drafts are made of models of type {target.config.model_type}. Leave "
            "--shapes away."
        )
    return shape


def require_memory(target: PreTrainedModel, shapes: Sequence[Shape]) -> None:
    """Raise UserError unless the weights of all shapes fit into memory together: their steps take turns."""
    needed = sum(shape.parameters() for shape in shapes) * torch.finfo(target.dtype).bits // 8
    free = free_bytes(target.device)
    if free is not None and needed > free:
        raise UserError(
            f"the untrained drafts take {needed / 2**30:.1f} GiB together, and {target.device} has "
            f"{free / 2**30:.1f} GiB free. Ask for fewer shapes, or for smaller ones."
        )
