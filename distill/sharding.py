"""Parallelism (FSDP2, HSDP) and activation checkpointing.

Hybrid sharding divides weights, gradients and moments over the processes of a machine and keeps a copy per machine:
layers are gathered only within machines, and gradients are reduced between them once per step.

Activation checkpointing source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost" (arXiv 1604.06174),
as in torch.utils.checkpoint. transformers' own switch wraps a layer's call in some versions and its forward in others,
and loses hooks that are removed before the backward pass, as the gates of learned masks are.
"""

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial, wraps
from typing import Any

import torch
import torch.distributed
from composer.utils import dist
from composer.utils.parallelism import FSDP2Config, ParallelismConfig
from torch import nn
from torch.distributed import ProcessGroup, ReduceOp
from torch.distributed.fsdp._fully_shard import _fsdp_collectives
from torch.torch_version import TorchVersion
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from architectures.errors import UserError
from architectures.importance.activation_scores import removable
from distill.recipe.sections import DistillConfig

DIVISION = "_get_gradient_divide_factors"  # private in torch
FIRST_TO_DIVIDE = TorchVersion("2.8")  # from this torch on the function differs


class HybridConfig(FSDP2Config):
    """FSDP2 with replicas: Composer 0.32.1 builds the mesh itself, over any given one, by default without replicas."""

    copies: int = 1

    @property
    def data_parallel_replicate_degree(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Number of replicas; consecutive ranks, like those of a machine, form one."""
        return self.copies


def parallelism_config(config: DistillConfig) -> ParallelismConfig | None:
    """Return the sharding of a model; None for DDP. Call on all processes, after they have joined.

    The trainer of Composer 0.32.1 reads only the keys `fsdp` and `tp` of a dict and ignores any other, so a dict with
    fsdp2 silently trains with DDP: it must be given the objects.

    Raises:
        UserError: If the shard degree does not divide the number of processes, or gradients cannot be averaged.
    """
    if config.parallelism == "ddp":
        return None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "FSDP2 Config/APIs are experimental")
        shards = (FSDP2Config if config.parallelism == "fsdp2" else HybridConfig)(state_dict_type="full")
    if isinstance(shards, HybridConfig):
        processes = dist.get_world_size()
        shards.copies = processes // shard_degree(config, processes, dist.get_local_world_size())
    average_gradients()
    return ParallelismConfig(fsdp2=shards)


def shard_degree(config: DistillConfig, processes: int, of_machine: int) -> int:
    """Return the number of processes per replica.

    Raises:
        UserError: If it does not divide the number of processes.
    """
    degree = of_machine if config.shard_degree == "auto" else config.shard_degree
    if processes % degree:
        raise UserError(
            f"distill.shard_degree must divide the number of processes, got {config.shard_degree}"
            f"{f' ({degree} on a machine)' if config.shard_degree == 'auto' else ''} and {processes}. "
            "Change one of the two."
        )
    return degree


def average_gradients() -> None:
    """Make FSDP2 average gradients on CPUs too.

    It uses ReduceOp.AVG, which gloo of torch 2.7 does not support: reduce-scatter then silently sums, and all-reduce
    fails. Sum and division afterwards, as torch does for other dtypes, is correct. After the all-reduce of replicas
    torch 2.7 also requires an event, which CPU streams lack.

    Raises:
        UserError: If this torch supports neither.
    """
    if torch.cuda.is_available() or averages():
        return
    if TorchVersion(torch.__version__) >= FIRST_TO_DIVIDE:
        raise UserError(
            f"distill.parallelism cannot be fsdp2 on processors with torch {torch.__version__}, whose gloo adds where "
            "it is to average. Use ddp, GPUs, or torch 2.7 or 2.11."
        )
    setattr(_fsdp_collectives, DIVISION, sum_and_divide)
    torch.cpu.Stream.record_event = lambda _: torch.cpu.Event()  # pyright: ignore[reportAttributeAccessIssue]


def averages() -> bool:
    size = dist.get_world_size()
    mean = torch.zeros(1)
    torch.distributed.reduce_scatter_tensor(mean, torch.ones(size), op=ReduceOp.AVG)
    return bool(mean == 1)


def sum_and_divide(
    shards: ProcessGroup,
    copies: ProcessGroup | None,
    dtype: torch.dtype,  # noqa: ARG001  # torch's signature
    device_type: str = "",  # noqa: ARG001
) -> tuple[float, float]:
    """Return the divisors of gradients before and after the reduction."""
    return 1.0, float(shards.size() * (1 if copies is None else copies.size()))


def recompute_layers(lm: nn.Module) -> None:
    """Checkpoint every layer of a model, of its encoder too: keep only the inputs, and recompute in the backward pass.

    Results are the same, bit for bit if the arithmetic is deterministic: dropout and autocast are restored, and a
    layer's own hooks, including FSDP2's, are not called again.
    """
    for layer in lm.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.forward = recomputed(layer)


def recomputed(layer: nn.Module) -> Any:
    forward = layer.forward

    @wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not (torch.is_grad_enabled() and layer.training):
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, context_fn=partial(contexts, layer), **kwargs)

    return run


def contexts(layer: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of the first pass and of the recomputation, which restores the hooks of the first pass."""
    parts = [module for module in layer.modules() if module is not layer]
    before = [(part, hook) for part in parts for hook in part._forward_pre_hooks.values()]  # noqa: SLF001  # private in torch
    after = [(part, hook) for part in parts for hook in part._forward_hooks.values()]  # noqa: SLF001
    return nullcontext(), hooked(before, after)


@contextmanager
def hooked(before: list[tuple[nn.Module, Any]], after: list[tuple[nn.Module, Any]]) -> Iterator[None]:
    """Register hooks for the duration of the block, each at most once per module."""
    with ExitStack() as hooks:
        for part, hook in before:
            if hook not in part._forward_pre_hooks.values():  # noqa: SLF001
                hooks.enter_context(removable(part.register_forward_pre_hook(hook)))
        for part, hook in after:
            if hook not in part._forward_hooks.values():  # noqa: SLF001
                hooks.enter_context(removable(part.register_forward_hook(hook)))
        yield
