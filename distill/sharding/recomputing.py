"""Activation checkpointing: layers that keep their inputs alone, and are computed again in the backward pass.

Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost" (arXiv 1604.06174), as
torch.utils.checkpoint has it. transformers' own switch wraps a layer's call in some versions and its forward in others,
and knows nothing of hooks that are gone by the time of the backward pass, as the gates of learned masks are.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial, wraps
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from architectures.importance.watching import removable


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
