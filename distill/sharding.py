"""How processes share what is trained (FSDP2, HSDP), and what a backward pass computes again.

Hybrid sharding divides weights, gradients and moments over the processes of a machine and keeps a copy on each machine,
so that layers are gathered within machines only and between them gradients are added, once a step's pass.

Activation checkpointing: layers that keep their inputs only, and are computed again in the backward pass.
Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost" (arXiv 1604.06174), as torch.utils.checkpoint
has it. transformers' own switch wraps a layer's call in some versions and its forward in others, and does not know of
hooks that are gone by the time of the backward pass, as the gates of learned masks are.
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

DIVISION = "_get_gradient_divide_factors"  # torch's function, which has no public name
FIRST_TO_DIVIDE = TorchVersion("2.8")  # from this torch on the function is another


class HybridConfig(FSDP2Config):
    """FSDP2 with copies: Composer 0.32.1 makes the mesh itself, over one that it is given, and else without copies."""

    copies: int = 1

    @property
    def data_parallel_replicate_degree(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """How often there is all of the model; the processes of one copy follow each other, as those of a machine."""
        return self.copies


def parallelism_config(config: DistillConfig) -> ParallelismConfig | None:
    """What divides a model; None where every process holds all of it. Call on all processes, which have met.

    The trainer of Composer 0.32.1 reads the keys `fsdp` and `tp` of a dict and passes over any other, so a dict that
    says fsdp2 trains by DDP without a word: it must be given the objects.

    Raises:
        UserError: If the shard degree does not divide the number of processes, or processes cannot average.
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
    """Over how many processes one copy is divided.

    Raises:
        UserError: If copies would not be of equally many processes.
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
    """See to it that FSDP2 takes means over processes on a processor too.

    It asks for ReduceOp.AVG, which gloo of torch 2.7 does not know: reduce-scatter then adds without a word, and
    all-reduce refuses. Told to add and to divide afterwards, as torch does for other number types, it is right. And
    behind the all-reduce of copies torch 2.7 insists on an event, which a processor's stream has none of.

    Raises:
        UserError: If this torch does neither.
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
    """Whether a reduce-scatter of ones that asks for their mean returns ones."""
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
    """What gradients are divided by before they are added and afterwards."""
    return 1.0, float(shards.size() * (1 if copies is None else copies.size()))


def recompute_layers(lm: nn.Module) -> None:
    """Have every layer of a model, of an encoder's too, forget between its passes all but what it was given.

    What is learned is the same, bit for bit where the arithmetic is repeatable: dropout draws what it drew, autocast is
    what it was, and a layer's own hooks, FSDP2's among them, are not called again.
    """
    for layer in lm.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.forward = recomputed(layer)


def recomputed(layer: nn.Module) -> Any:
    """A forward pass that keeps what it was given, where gradients will be asked for."""
    forward = layer.forward

    @wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not (torch.is_grad_enabled() and layer.training):
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, context_fn=partial(contexts, layer), **kwargs)

    return run


def contexts(layer: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """What surrounds a layer's first pass, and what its second: the hooks that its parts have during the first."""
    parts = [module for module in layer.modules() if module is not layer]
    before = [(part, hook) for part in parts for hook in part._forward_pre_hooks.values()]  # noqa: SLF001  # no other name
    after = [(part, hook) for part in parts for hook in part._forward_hooks.values()]  # noqa: SLF001
    return nullcontext(), hooked(before, after)


@contextmanager
def hooked(before: list[tuple[nn.Module, Any]], after: list[tuple[nn.Module, Any]]) -> Iterator[None]:
    """While the block runs, parts have these hooks, each once."""
    with ExitStack() as hooks:
        for part, hook in before:
            if hook not in part._forward_pre_hooks.values():  # noqa: SLF001
                hooks.enter_context(removable(part.register_forward_pre_hook(hook)))
        for part, hook in after:
            if hook not in part._forward_hooks.values():  # noqa: SLF001
                hooks.enter_context(removable(part.register_forward_hook(hook)))
        yield
