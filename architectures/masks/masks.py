"""Learned masks: a gate on every layer, head, neuron and channel of a target, of which a draft's shape keeps so many.

Shape suffixes used in this file:
    L = layers, K = key/value heads, one for each group of query heads, G = query heads of a group, N = K x G
    F = neurons, H = channels
    X = all gates of one axis: the last dimension is counted, those before it are counted each for itself; C = those

Axes are `layers` [L], `groups` [L, K], `heads` [L, K, G], `neurons` [L, F] and `channels` [H]; a draft that keeps all
of one has no gates there. Gates are hard concrete: exactly 0 and exactly 1 both have a probability above zero.

Source: Louizos et al. 2018, "Learning Sparse Neural Networks through L0 Regularization", sec. 2.2 (arXiv 1712.01312);
the constraints: Xia et al. 2024, "Sheared LLaMA", sec. 2.1 (arXiv 2310.06694).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log

import numpy as np
import torch
from torch import Tensor, nn

from architectures.masks.shards import whole
from architectures.pruning.plan_record import PruningPlan
from architectures.shapes.shape import Shape

LOW, HIGH, BETA = -0.1, 1.1, 2 / 3  # what the concrete distribution is stretched to, and its temperature
OPEN_SHIFT = -BETA * log(-LOW / HIGH)  # P(gate > 0) = sigmoid(log_alpha + OPEN_SHIFT)
# Nearly all gates are open at the start, P(gate > 0) = 0.98, and no two alike. From 5.0 they would sink together
# through values at which no gate is ever half open, and learn nothing: in a toy, 400 steps then kept 0.28 to 0.44 of
# the layers that mattered most, and 0.56 to 0.83 from 2.5 (docs/log.md; chance is 0.20).
FIRST_LOG_ALPHA, FIRST_SPREAD = 2.5, 0.01
NOISE_MARGIN = 1e-6
LARGEST_FLOOR = 1e-4  # P(gate > 0) of a gate that is as good as closed, at most
LEAST_KEPT = 0.5  # value of a gate that is kept though training left it nearer to closed: no kept part is dead
MULTIPLIERS = 2  # of each constraint: of the gap and of its square
MOST_PARTS = 32  # a gap of one gate in 32 counts as 1, of one in 11008 as 1/344: it would drown the loss otherwise


@dataclass(frozen=True)
class Axis:
    """Gates of one kind.

    Attributes:
        size: Of the gates; the last dimension is counted.
        kept: How many of the last dimension the draft keeps.
    """

    size: tuple[int, ...]
    kept: int

    @property
    def fraction(self) -> float:
        return self.kept / self.size[-1]

    @property
    def parts(self) -> int:
        """What a gap is counted in: single gates where there are few, else 32nds of all."""
        return min(self.size[-1], MOST_PARTS)

    @property
    def limits(self) -> tuple[float, float]:
        """Between which log_alpha must stay so that a closed gate can open again and a constraint can still be met.

        Sheared LLaMA keeps P(gate > 0) above 0.047 (log_alpha within ±ln 100): 31 closed layers of 32 then count as
        1.46, and a draft of one layer is out of reach. Here closed gates count together as at most a hundredth of the
        kept ones, and kept ones miss 1 by as little.
        """
        floor = min(LARGEST_FLOOR, 0.01 * self.fraction)
        logit = log((1 - floor) / floor)
        return -logit - OPEN_SHIFT, logit - OPEN_SHIFT


def cut_axes(source: Shape, draft: Shape) -> dict[str, Axis]:
    """The axes a draft's shape cuts; none if it is the target's."""
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
    """What parts of a model are multiplied by; None where nothing is."""

    layers_L: Tensor | None = None
    heads_LN: Tensor | None = None
    neurons_LF: Tensor | None = None
    channels_H: Tensor | None = None


class Masks(nn.Module):
    """Log-alphas of all gates, and the multipliers of the constraints on how many may be open.

    Args:
        source: The target's shape.
        draft: Which counts the constraints ask for.
        seed: Of the first values and of every draw.

    Raises:
        ValueError: If the draft has the target's shape.
    """

    def __init__(self, source: Shape, draft: Shape, *, seed: int):
        super().__init__()
        self.source, self.draft, self.seed = source, draft, seed
        self.axes = cut_axes(source, draft)
        if not self.axes:
            raise ValueError(f"the draft has the target's shape, {draft}: there is nothing to mask.")
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
        """log_alpha_X of an axis, all of them; call on all processes where they are divided."""
        return whole(self.log_alpha[name])

    def sampled(self, step: int) -> Gates:
        """Gates drawn for one step: equal on every rank, for every micro-batch, and after resuming."""
        generator = np.random.default_rng((self.seed, step))  # torch's own looks at the last 32 bits of a seed only
        draws = {name: torch.from_numpy(generator.random(axis.size, np.float32)) for name, axis in self.axes.items()}

        def drawn(name: str) -> Tensor:
            log_alpha_X = self.values(name)
            return hard_concrete(log_alpha_X, draws[name].to(log_alpha_X.device))

        return self.gates(drawn)

    def expected(self) -> Gates:
        """Gates without chance: the middle of the distribution, clipped."""
        return self.gates(lambda name: middle(self.values(name)))

    def final(self) -> Gates:
        """As `expected`, but exactly as many are open as the draft keeps: what `plan_from_masks` removes is 0."""
        return self.gates(lambda name: middle(self.values(name)).clamp(min=LEAST_KEPT) * self.kept(name))

    def kept(self, name: str) -> Tensor:
        """kept_X of an axis: True for the largest log-alphas, as many as the draft keeps; of equals the earlier."""
        order_X = torch.argsort(self.values(name).detach(), dim=-1, descending=True, stable=True)
        kept_X = torch.zeros_like(order_X, dtype=torch.bool)
        return kept_X.scatter_(-1, order_X[..., : self.axes[name].kept], value=True)

    def gates(self, value: Callable[[str], Tensor]) -> Gates:
        """The value of every axis, with the gates of groups and of heads in them multiplied into one for each head."""
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
        """Of every axis, how many gates are expected to be above 0; the mean over C. Differentiable."""
        return {name: open_probability(self.values(name)).sum(dim=-1).mean() for name in self.axes}

    def gaps(self, progress: float) -> dict[str, Tensor]:
        """gap_C of every axis: how many more gates are expected open than should be now, in the axis's parts.

        Sheared LLaMA's paper counts gates and its code takes shares. In shares a draft of one layer out of 32 that has
        lost all is off by 0.03, and alternating descent and ascent (200 steps, rates of 1.0) ended at 10.8 layers
        instead of 1; in counts at 1.2.

        Args:
            progress: 0 asks for the target's size, 1 for the draft's, linear between.
        """
        return {
            name: axis.parts * (open_probability(self.values(name)).mean(dim=-1) - (1 + progress * (axis.fraction - 1)))
            for name, axis in self.axes.items()
        }

    def lagrangian(self, progress: float) -> Tensor:
        """Sum over all constraints of multiplier x gap + multiplier x gap^2; scalar, 0 where every gap is.

        To be minimised by log-alphas and maximised by multipliers. So that one optimiser can do both, the gradient of
        the multipliers comes out negated.

        Args:
            progress: As in `gaps`.
        """
        terms = []
        for name, gap_C in self.gaps(progress).items():
            linear_C, square_C = ascending(whole(self.multipliers[name]))
            terms.append((linear_C * gap_C + square_C * gap_C**2).sum())
        return torch.stack(terms).sum()

    @torch.no_grad()
    def limit(self) -> None:
        """Bring every log-alpha back between its limits. Call after each step."""
        for name, axis in self.axes.items():
            self.log_alpha[name].clamp_(*axis.limits)


def hard_concrete(log_alpha_X: Tensor, uniform_X: Tensor) -> Tensor:
    """A gate in [0, 1] for every draw from [0, 1), in the dtype of log_alpha_X."""
    uniform_X = NOISE_MARGIN + (1 - 2 * NOISE_MARGIN) * uniform_X
    concrete_X = torch.sigmoid((uniform_X.log() - (1 - uniform_X).log() + log_alpha_X) / BETA)
    return (concrete_X * (HIGH - LOW) + LOW).clamp(0, 1)


def middle(log_alpha_X: Tensor) -> Tensor:
    """The gate without noise: 0 below log_alpha = -2.4, 1 above 2.4."""
    return (torch.sigmoid(log_alpha_X) * (HIGH - LOW) + LOW).clamp(0, 1)


def open_probability(log_alpha_X: Tensor) -> Tensor:
    """P(gate > 0) of every gate."""
    return torch.sigmoid(log_alpha_X + OPEN_SHIFT)


def ascending(multipliers: Tensor) -> Tensor:
    """The same values with the negated gradient."""
    return 2 * multipliers.detach() - multipliers


def product(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Both multiplied, or the one that is there."""
    return first * second if first is not None and second is not None else (second if first is None else first)


def plan_from_masks(masks: Masks, source: Shape, draft: Shape, *, target: str | None = None) -> PruningPlan:
    """Keep the largest log-alphas of every axis: exactly the draft's shape.

    Args:
        masks: Trained for these two shapes.
        source: The target's shape.
        draft: The draft's.
        target: The target's fingerprint, recorded.

    Raises:
        ValueError: If the masks are of other shapes.
    """
    if (masks.source, masks.draft) != (source, draft):
        raise ValueError(f"the masks are for {masks.draft} out of {masks.source}, not for {draft} out of {source}.")
    layers = kept_indices(masks.kept("layers")) if "layers" in masks.axes else tuple(range(source.layers))
    return PruningPlan(
        source_layers=layers,
        source=source,
        draft=draft,
        method="learned_masks",
        neurons=rows(masks.kept("neurons"), layers) if "neurons" in masks.axes else None,
        heads=rows(kept_heads(masks), layers) if {"groups", "heads"} & masks.axes.keys() else None,
        kv_heads=rows(masks.kept("groups"), layers) if "groups" in masks.axes else None,
        channels=kept_indices(masks.kept("channels")) if "channels" in masks.axes else None,
        target=target,
    )


def kept_heads(masks: Masks) -> Tensor:
    """kept_LN: the heads that are kept in their group, of the groups that are kept."""
    heads_LN = masks.gates(masks.kept).heads_LN
    assert heads_LN is not None  # the caller asked for it
    return heads_LN


def rows(kept_LX: Tensor, layers: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The indices kept in each of some layers."""
    return tuple(kept_indices(kept_LX[layer]) for layer in layers)


def kept_indices(kept_X: Tensor) -> tuple[int, ...]:
    """Where a vector is True."""
    return tuple(int(index) for index in kept_X.nonzero()[:, 0])
