"""Drafts of the tiny target whose output head says some ids alone, and what a plain computation makes of them."""

import random
from pathlib import Path

import torch

from architectures.hub import read_config
from architectures.pruning.plan import plan_pruning
from architectures.pruning.prune import prune_checkpoint
from architectures.requested_shape import ArchitectureConfig
from architectures.shapes import Shape

VOCAB = 264
IDS = tuple(sorted(random.Random(5).sample(range(VOCAB), 120)))


def cut_draft(source: Path, out: Path, ids: tuple[int, ...] | None = IDS, *, layers: int = 2) -> Path:
    """A draft of so many layers that says these ids alone, or all; its folder, as the stage prune leaves it."""
    shape = Shape.from_config(read_config(source))
    plan = plan_pruning(shape, ArchitectureConfig(layers=layers, method="first_last"))
    prune_checkpoint(source, plan if ids is None else plan.with_vocabulary(ids), out, origin={"from": "a test"})
    return out


def masked(logits_AV: torch.Tensor, ids: tuple[int, ...] = IDS) -> torch.Tensor:
    """The logits with probability 0 for every other id; finite, so that gradients are no NaN."""
    is_said_V = torch.zeros(logits_AV.shape[-1], dtype=torch.bool)
    is_said_V[list(ids)] = True
    return logits_AV.masked_fill(~is_said_V, torch.finfo(torch.float32).min)
