"""Gates at work: multiplied into the forward pass of a transformers model, or into its weights.

Shape suffixes used in this file:
    B = sequences in the batch, T = tokens per sequence, H = channels, N = query heads, F = neurons, L = layers

Where each gate acts:
    heads      on the input of the attention's output projection
    neurons    on the input of the feed-forward's output projection
    channels   on what is written to the residual stream (embeddings, both projections) and on what the head reads,
               which keeps a tied head equal to the embedding. Where a norm stands behind a projection, before that norm
    layers     on what both parts of a layer add to the stream. Where a norm stands behind a projection, after that
               norm, which would undo it

A channel whose gate is 0 is zero in the stream, and that is what slicing makes of a removed channel.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from architectures.families import FAMILIES
from architectures.masks.masks import Gates
from architectures.pruning.slicing import POST_NORMS, WRITERS, TensorLocation
from architectures.shapes.shape import Shape


@contextmanager
def masked(model: nn.Module, gates: Gates, shape: Shape) -> Iterator[None]:
    """While the block runs, the model computes with its parts multiplied by the gates. Gradients reach both.

    Args:
        model: A transformers causal language model.
        gates: On the model's device.
        shape: Of the model.
    """
    handles = []
    try:
        for name, (before, after) in factors(gates, shape).items():
            module = model.get_submodule(name)
            if before is not None:
                handles.append(module.register_forward_pre_hook(multiply_input(before)))
            if after is not None:
                handles.append(module.register_forward_hook(multiply_output(after)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def factors(gates: Gates, shape: Shape) -> dict[str, tuple[Tensor | None, Tensor | None]]:
    """Of every module that gates act on, what its input and what its output is multiplied by."""
    family = FAMILIES[shape.family]
    by_module: dict[str, tuple[Tensor | None, Tensor | None]] = {}
    for role in ("embedding", "final_norm"):
        by_module[family.outside[role].name] = None, gates.channels_H
    for layer in range(shape.layers):
        for role in (*WRITERS, *POST_NORMS):
            if role in family.layer:
                by_module[family.layer_module(layer, role)] = (
                    input_factor(gates, shape, role, layer),
                    output_factor(gates, shape, role, layer),
                )
    return by_module


def input_factor(gates: Gates, shape: Shape, role: str, layer: int) -> Tensor | None:
    """What the inputs of a projection that writes the stream are multiplied by; None for nothing."""
    if role == "attention_output" and gates.heads_LN is not None:
        return gates.heads_LN[layer].repeat_interleave(shape.head_dim)
    return gates.neurons_LF[layer] if role == "ffn_down" and gates.neurons_LF is not None else None


def output_factor(gates: Gates, shape: Shape, role: str, layer: int) -> Tensor | None:
    """What the outputs of a projection, or of the norm behind it, are multiplied by; None for nothing."""
    layer_gate = None if gates.layers_L is None else gates.layers_L[layer]
    if role in POST_NORMS:
        return layer_gate
    has_post_norms = any(norm in FAMILIES[shape.family].layer for norm in POST_NORMS)
    if has_post_norms or layer_gate is None:
        return gates.channels_H
    return layer_gate if gates.channels_H is None else layer_gate * gates.channels_H


def multiply_input(factor: Tensor) -> Callable[..., tuple[Tensor, ...]]:
    """A hook that multiplies a module's first input, in the input's dtype."""
    return lambda _, inputs: (inputs[0] * factor.to(inputs[0].dtype), *inputs[1:])


def multiply_output(factor: Tensor) -> Callable[..., Tensor]:
    """A hook that multiplies a module's output, in the output's dtype."""
    return lambda _, __, output: output * factor.to(output.dtype)


@torch.no_grad()
def fold(tensor: Tensor, location: TensorLocation, gates: Gates, shape: Shape) -> Tensor:
    """A tensor of the model with the gates multiplied into it, in its dtype. The weights alone then do as `masked`.

    Args:
        tensor: Of the model the gates were made for.
        location: Where it stands.
        gates: `Masks.final()`: what a plan removes is then 0, and slicing by that plan changes nothing more.
        shape: Of the model.
    """
    family, role = FAMILIES[shape.family], location.role
    if location.layer is None:
        return along(tensor, 1, gates.channels_H) if role in ("embedding", "head") else tensor
    if role not in (*WRITERS, *POST_NORMS):
        return tensor
    before, after = (factor(gates, shape, role, location.layer) for factor in (input_factor, output_factor))
    if role in POST_NORMS:
        return tensor if after is None else (tensor + family.norm_offset) * after.to(tensor) - family.norm_offset
    axes = family.layer[role].axes if location.kind == "weight" else ("hidden",)
    for dim, axis in enumerate(axes):
        tensor = along(tensor, dim, after if axis == "hidden" else before)
    return tensor


def along(tensor: Tensor, dim: int, factor: Tensor | None) -> Tensor:
    """The tensor times one factor, or a factor for each index of a dimension, in the tensor's dtype."""
    if factor is None:
        return tensor
    return tensor * factor.to(tensor).view([-1 if i == dim else 1 for i in range(tensor.dim())])
