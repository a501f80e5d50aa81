"""Learned masks: a gate on every layer, head, neuron and channel of a target, and the plan made from trained gates.

Shape suffixes used in this file:
    B = sequences in the batch, T = tokens per sequence
    L = layers, K = key/value heads, one for each group of query heads, G = query heads of a group, N = K x G
    F = neurons, H = channels
    X = all gates of one axis: its last dimension is counted, for each index of the dimensions C before it

Axes are `layers` [L], `groups` [L, K], `heads` [L, K, G], `neurons` [L, F] and `channels` [H]; an axis that the draft
keeps whole has no gates. Gates are hard concrete: exactly 0 and exactly 1 both have a probability above zero.

Positions of the gates:
    heads      on the input of the attention's output projection
    neurons    on the input of the feed-forward's output projection
    channels   on everything written to the residual stream (embeddings, both projections) and on the input of the head,
               which keeps a tied head equal to the embedding. If a norm follows a projection, before that norm
    layers     on the output of both parts of a layer. If a norm follows a projection, after that norm, which would
               undo it

A channel whose gate is 0 is zero in the stream, which is exactly how slicing treats a removed channel.

Source: Louizos et al. 2018, "Learning Sparse Neural Networks through L0 Regularization", sec. 2.2 (arXiv 1712.01312);
the constraints: Xia et al. 2024, "Sheared LLaMA", sec. 2.1 (arXiv 2310.06694).
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import log

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial

from architectures.families import FAMILIES
from architectures.pruning.plan import PruningPlan
from architectures.pruning.prune import POST_NORMS, WRITERS
from architectures.shapes import Shape, TensorLocation

LOW, HIGH, BETA = -0.1, 1.1, 2 / 3  # stretch limits of the concrete distribution, and its temperature
OPEN_SHIFT = -BETA * log(-LOW / HIGH)  # P(gate > 0) = sigmoid(log_alpha + OPEN_SHIFT)
# Nearly all gates are open at the start, P(gate > 0) = 0.98, and no two are equal. From 5.0 they would fall together
# through values at which no gate is ever half open, and learn nothing: in a toy model, 400 steps then kept 0.28 to
# 0.44 of the most important layers, and 0.56 to 0.83 from 2.5 (docs/benchmarks.md; a random choice keeps 0.20).
FIRST_LOG_ALPHA, FIRST_SPREAD = 2.5, 0.01
NOISE_MARGIN = 1e-6
LARGEST_FLOOR = 1e-4  # maximum P(gate > 0) of a gate that counts as closed
LEAST_KEPT = 0.5  # minimum value of a kept gate, even if training left it nearly closed: no kept part is dead
MULTIPLIERS = 2  # per constraint: of the gap and of its square
MOST_PARTS = 32  # a gap of one gate in 32 counts as 1, of one in 11008 as 1/344: it would dominate the loss otherwise


@dataclass(frozen=True)
class Axis:
    """Gates of one kind.

    Attributes:
        size: Of the gates; they are counted over the last dimension.
        kept: Number of gates of the last dimension that the draft keeps.
    """

    size: tuple[int, ...]
    kept: int

    @property
    def fraction(self) -> float:
        return self.kept / self.size[-1]

    @property
    def parts(self) -> int:
        """Unit of a gap: single gates if there are few, else 32nds of all."""
        return min(self.size[-1], MOST_PARTS)

    @property
    def limits(self) -> tuple[float, float]:
        """Range of log_alpha in which a closed gate can open again and a constraint can still be met.

        Sheared LLaMA keeps P(gate > 0) above 0.047 (log_alpha within ±ln 100): 31 closed layers of 32 then count as
        1.46, and a draft of one layer is out of reach. Here closed gates together count as at most a hundredth of the
        kept ones, and kept ones miss 1 by as little.
        """
        floor = min(LARGEST_FLOOR, 0.01 * self.fraction)
        logit = log((1 - floor) / floor)
        return -logit - OPEN_SHIFT, logit - OPEN_SHIFT


def cut_axes(source: Shape, draft: Shape) -> dict[str, Axis]:
    """Return the axes that a draft's shape prunes; none if it is the target's shape."""
    layers, groups = source.layers, source.kv_heads
    group = source.heads // groups
    axes = {
        "layers": Axis((layers,), draft.layers),
        "groups": Axis((layers, groups), draft.kv_heads),
        "heads": Axis((layers, groups, group), draft.heads // draft.kv_heads),
        "neurons": Axis((layers, source.intermediate), draft.intermediate),
        "channels": Axis((source.hidden,), draft.hidden),
    }
    return {name: axis for name, axis in axes.items() if axis.kept < axis.size[-1]}


@dataclass(frozen=True)
class Gates:
    """Factors of the parts of a model; None if a part has no gates."""

    layers_L: Tensor | None = None
    heads_LN: Tensor | None = None
    neurons_LF: Tensor | None = None
    channels_H: Tensor | None = None


class Masks(nn.Module):
    """Log-alphas of all gates, and the Lagrange multipliers of the constraints on the number of open gates.

    Args:
        draft: The shape that the constraints enforce.
        seed: Of the initial values and of every sample.

    Raises:
        ValueError: If the draft has the target's shape.
    """

    def __init__(self, source: Shape, draft: Shape, *, seed: int):
        super().__init__()
        self.source, self.draft, self.seed = source, draft, seed
        self.axes = cut_axes(source, draft)
        if not self.axes:
            raise ValueError(f"the draft has the target's shape, {draft}: nothing to mask.")
        generator = torch.Generator().manual_seed(seed)
        self.log_alpha = nn.ParameterDict(
            {
                name: nn.Parameter(FIRST_LOG_ALPHA + FIRST_SPREAD * torch.randn(axis.size, generator=generator))
                for name, axis in self.axes.items()
            }
        )
        self.multipliers = nn.ParameterDict(
            {name: nn.Parameter(torch.zeros(MULTIPLIERS, *axis.size[:-1])) for name, axis in self.axes.items()}
        )

    def values(self, name: str) -> Tensor:
        """Return the whole log_alpha_X of an axis; call on all ranks if parameters are sharded."""
        return whole(self.log_alpha[name])

    def sampled(self, step: int) -> Gates:
        """Sample gates for one step: equal on every rank, for every micro-batch, and after resuming."""
        generator = np.random.default_rng((self.seed, step))  # torch's own uses only the last 32 bits of a seed
        draws = {name: torch.from_numpy(generator.random(axis.size, np.float32)) for name, axis in self.axes.items()}

        def drawn(name: str) -> Tensor:
            log_alpha_X = self.values(name)
            return hard_concrete(log_alpha_X, draws[name].to(log_alpha_X.device))

        return self.gates(drawn)

    def expected(self) -> Gates:
        """Return deterministic gates: the middle of the distribution, clipped."""
        return self.gates(lambda name: middle(self.values(name)))

    def final(self) -> Gates:
        """Return `expected` with exactly the draft's number of open gates: all that `plan_from_masks` removes is 0."""
        return self.gates(lambda name: middle(self.values(name)).clamp(min=LEAST_KEPT) * self.kept(name))

    def kept(self, name: str) -> Tensor:
        """Return kept_X of an axis: True for the draft's number of largest log-alphas; ties go to the lower index."""
        order_X = torch.argsort(self.values(name).detach(), dim=-1, descending=True, stable=True)
        kept_X = torch.zeros_like(order_X, dtype=torch.bool)
        return kept_X.scatter_(-1, order_X[..., : self.axes[name].kept], value=True)

    def gates(self, value: Callable[[str], Tensor]) -> Gates:
        """Return the gates of every axis, with those of groups and of heads in them multiplied into one per head."""
        values = {name: value(name) for name in self.axes}
        group = self.source.heads // self.source.kv_heads
        groups_LN = values["groups"].repeat_interleave(group, dim=1) if "groups" in values else None
        heads_LN = values["heads"].flatten(1) if "heads" in values else None
        return Gates(
            layers_L=values.get("layers"),
            heads_LN=product(groups_LN, heads_LN),
            neurons_LF=values.get("neurons"),
            channels_H=values.get("channels"),
        )

    def expected_sizes(self) -> dict[str, Tensor]:
        """Return the expected number of open gates of every axis, averaged over C. Differentiable."""
        return {name: open_probability(self.values(name)).sum(dim=-1).mean() for name in self.axes}

    def gaps(self, progress: float) -> dict[str, Tensor]:
        """Return gap_C of every axis: expected minus scheduled number of open gates, in units of `Axis.parts`.

        Sheared LLaMA's paper counts gates and its code uses shares. In shares a draft of one layer out of 32 that has
        lost all is off by 0.03, and alternating descent and ascent (200 steps, rates of 1.0) ended at 10.8 layers
        instead of 1; in counts at 1.2.

        Args:
            progress: 0 requires the target's size, 1 the draft's, linear between.
        """
        return {
            name: axis.parts * (open_probability(self.values(name)).mean(dim=-1) - (1 + progress * (axis.fraction - 1)))
            for name, axis in self.axes.items()
        }

    def lagrangian(self, progress: float) -> Tensor:
        """Return the sum over all constraints of multiplier x gap + multiplier x gap^2; scalar, 0 if every gap is.

        Minimised by log-alphas and maximised by multipliers. The gradient of the multipliers is negated, so that one
        optimiser can do both.
        """
        terms = []
        for name, gap_C in self.gaps(progress).items():
            linear_C, square_C = ascending(whole(self.multipliers[name]))
            terms.append((linear_C * gap_C + square_C * gap_C**2).sum())
        return torch.stack(terms).sum()

    @torch.no_grad()
    def limit(self) -> None:
        """Clamp every log-alpha to its limits. Call after each step."""
        for name, axis in self.axes.items():
            self.log_alpha[name].clamp_(*axis.limits)


def hard_concrete(log_alpha_X: Tensor, uniform_X: Tensor) -> Tensor:
    """Return a gate in [0, 1] for every sample from [0, 1), in the dtype of log_alpha_X."""
    uniform_X = NOISE_MARGIN + (1 - 2 * NOISE_MARGIN) * uniform_X
    concrete_X = torch.sigmoid((uniform_X.log() - (1 - uniform_X).log() + log_alpha_X) / BETA)
    return (concrete_X * (HIGH - LOW) + LOW).clamp(0, 1)


def middle(log_alpha_X: Tensor) -> Tensor:
    """Return the gate without noise: 0 below log_alpha = -2.4, 1 above 2.4."""
    return (torch.sigmoid(log_alpha_X) * (HIGH - LOW) + LOW).clamp(0, 1)


def open_probability(log_alpha_X: Tensor) -> Tensor:
    return torch.sigmoid(log_alpha_X + OPEN_SHIFT)


def ascending(multipliers: Tensor) -> Tensor:
    """Return the same values with the negated gradient."""
    return 2 * multipliers.detach() - multipliers


def product(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return first * second if first is not None and second is not None else (second if first is None else first)


def whole(parameter: Tensor) -> Tensor:
    """Return a whole parameter, gathered if sharded; its gradient is the mean over ranks, as in FSDP2.

    Call on all ranks. FSDP2 gathers only parameters that a module's own forward reads, and masks have none.
    """
    if not isinstance(parameter, DTensor):
        return parameter
    mesh = parameter.device_mesh
    everywhere = parameter.full_tensor(grad_placements=[Partial()] * mesh.ndim)  # which sums
    fixed = everywhere.detach()
    return fixed + (everywhere - fixed) / mesh.size()  # the same value: the difference is 0


def plan_from_masks(masks: Masks, *, target: str | None = None) -> PruningPlan:
    """Return the plan that keeps the largest log-alphas of every axis: exactly the draft's shape.

    Args:
        target: The target's fingerprint, recorded.
    """
    source, kept = masks.source, {name: masks.kept(name) for name in masks.axes}
    layers = indices(kept["layers"]) if "layers" in kept else tuple(range(source.layers))
    heads_LN = masks.gates(masks.kept).heads_LN

    def of_layers(kept_LX: Tensor | None) -> tuple[tuple[int, ...], ...] | None:
        return None if kept_LX is None else tuple(indices(kept_LX[layer]) for layer in layers)

    return PruningPlan(
        source_layers=layers,
        source=source,
        draft=masks.draft,
        method="learned_masks",
        neurons=of_layers(kept.get("neurons")),
        heads=of_layers(heads_LN),
        kv_heads=of_layers(kept.get("groups")),
        channels=indices(kept["channels"]) if "channels" in kept else None,
        target=target,
    )


def indices(kept_X: Tensor) -> tuple[int, ...]:
    return tuple(int(index) for index in kept_X.nonzero()[:, 0])


# --- gates in the forward pass, and in the weights ------------------------------------------------------------------


@contextmanager
def masked(model: nn.Module, gates: Gates, shape: Shape) -> Iterator[None]:
    """Multiply the model's parts by the gates while the block runs. Gradients reach both.

    Args:
        gates: On the model's device.
    """
    with ExitStack() as hooks:
        for name, (before, after) in factors(gates, shape).items():
            module = model.get_submodule(name)
            if before is not None:
                hooks.enter_context(module.register_forward_pre_hook(multiply_input(before)))
            if after is not None:
                hooks.enter_context(module.register_forward_hook(multiply_output(after)))
        yield


def factors(gates: Gates, shape: Shape) -> dict[str, tuple[Tensor | None, Tensor | None]]:
    """Return the factors of input and output of every gated module."""
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
    if role == "attention_output" and gates.heads_LN is not None:
        return gates.heads_LN[layer].repeat_interleave(shape.head_dim)
    return gates.neurons_LF[layer] if role == "ffn_down" and gates.neurons_LF is not None else None


def output_factor(gates: Gates, shape: Shape, role: str, layer: int) -> Tensor | None:
    layer_gate = None if gates.layers_L is None else gates.layers_L[layer]
    if role in POST_NORMS:
        return layer_gate
    has_post_norms = any(norm in FAMILIES[shape.family].layer for norm in POST_NORMS)
    if has_post_norms or layer_gate is None:
        return gates.channels_H
    return layer_gate if gates.channels_H is None else layer_gate * gates.channels_H


def multiply_input(factor: Tensor) -> Callable[..., tuple[Tensor, ...]]:
    return lambda _, inputs: (inputs[0] * factor.to(inputs[0].dtype), *inputs[1:])


def multiply_output(factor: Tensor) -> Callable[..., Tensor]:
    return lambda _, __, output: output * factor.to(output.dtype)


@torch.no_grad()
def fold(tensor: Tensor, location: TensorLocation, gates: Gates, shape: Shape) -> Tensor:
    """Multiply the gates into a tensor of the model, in its dtype, so that the weights compute the same as `masked`.

    Args:
        gates: `Masks.final()`: the parts that a plan removes are then 0, and slicing by that plan changes nothing
            more.
    """
    family, role = FAMILIES[shape.family], location.role
    if location.layer is None:
        return along(tensor, 1, gates.channels_H) if role in ("embedding", "head") else tensor
    if role not in (*WRITERS, *POST_NORMS):
        return tensor
    before, after = (factor(gates, shape, role, location.layer) for factor in (input_factor, output_factor))
    if role in POST_NORMS:
        return tensor if after is None else (tensor + family.norm_offset) * after.to(tensor) - family.norm_offset
    axes = location.part.axes if location.kind == "weight" else ("hidden",)
    for dim, axis in enumerate(axes):
        tensor = along(tensor, dim, after if axis == "hidden" else before)
    return tensor


def along(tensor: Tensor, dim: int, factor: Tensor | None) -> Tensor:
    """Multiply a tensor by a scalar, or by one factor per index of a dimension, in the tensor's dtype."""
    if factor is None:
        return tensor
    return tensor * factor.to(tensor).view([-1 if i == dim else 1 for i in range(tensor.dim())])
