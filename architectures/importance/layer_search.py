"""Order in which a target loses its layers: removed one by one, or merged with their neighbours.

A layer runs with the arguments the model gave it (mask, positions), recorded once: they do not depend on the layers
before it, so they stay valid wherever the layer ends up. Layers before a change run once for all candidates of a step.

Shape suffixes used in this file:
    S = sequences, T = tokens per sequence, V = vocabulary, H = hidden width, C = candidates of a step
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812 (as everyone calls it)
from transformers import PreTrainedModel

from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.importance.activation_scores import evaluating, removable
from architectures.progress import track
from architectures.sharing import ALONE, Share
from architectures.vocabulary_head import for_head, read_text


@dataclass(frozen=True)
class Block:
    """Adjacent layers of the target that run as one.

    Attributes:
        layers: Of the target; the first is the module that runs.
        weights: Replace the module's own; empty keeps them.
    """

    layers: tuple[int, ...]
    weights: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Passage:
    """Recorded forward pass of one sequence through the whole model.

    Attributes:
        entry: x_1TH, the residual stream before the first layer.
        calls: For each layer, its arguments in addition to the stream.
        exit: x_1TH, the head's input, after the final norm.
    """

    entry: Tensor
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    exit: Tensor


Tail = Sequence[Block]


DistanceFrom = Callable[[Passage], Callable[[Tensor], Tensor]]  # from the whole model to a changed one with exit_1TH


def removal_order(model: PreTrainedModel, ids_ST: Tensor, share: Share = ALONE) -> list[int]:
    """Return num_layers - 1 layers, each the one whose removal changes the model least; ties go to the lower index.

    The change is KL(whole model || pruned model) in nats, mean over all tokens, from log-probabilities in float32.
    Every step compares with the whole model, so that errors do not accumulate unnoticed.

    Source: Song et al. 2024, "SLEB", sec. 3 (arXiv 2402.09025), with KL instead of perplexity.

    Args:
        model: Of a known family; left unchanged. UserError if it overflows.
        share: This process's part of the candidates of each step; all processes return the same order.
    """
    with evaluating(model), torch.inference_mode():
        search = LayerSearch(model, ids_ST, share)
        blocks, order = search.single_layers(), []
        for _ in steps(len(blocks), "Greedy removal of layers"):
            tails = [blocks[index + 1 :] for index in range(len(blocks))]
            index = search.nearest(blocks, tails, search.kl_from)
            order += blocks.pop(index).layers
        return order


def merge_order(model: PreTrainedModel, ids_ST: Tensor, share: Share = ALONE) -> list[int]:
    """Return num_layers - 1 layers, in the order in which each, with its group, is merged into the group before it.

    Each step merges the two adjacent groups that leave the final hidden states (after the final norm) closest to the
    whole model's: the highest cosine, mean over all tokens, in float32; ties go to the lower index. A group runs as
    its first layer with weights theta_first + sum_k (theta_k - theta_first), as merged by architectures.pruning.prune.

    Source: Yang et al. 2024, "LaCo", sec. 3 (arXiv 2402.11187). LaCo merges a fixed number of layers wherever a
    threshold allows it, from the top down; merging the best pair instead reaches any depth.

    Takes memory for a second copy of the layers: each pair is merged once, not for every step and sequence. Arguments
    as in `removal_order`.
    """
    with evaluating(model), torch.inference_mode():
        search = LayerSearch(model, ids_ST, share)
        blocks, order = search.single_layers(), []
        merged: dict[tuple[int, ...], Block] = {}  # by their layers
        for _ in steps(len(blocks), "Merging of layers"):
            groups = [before.layers + behind.layers for before, behind in pairwise(blocks)]
            merged = {group: merged[group] if group in merged else search.merged(group) for group in groups}
            pairs = list(merged.values())
            tails = [[pair, *blocks[index + 2 :]] for index, pair in enumerate(pairs)]
            index = search.nearest(blocks, tails, search.turn_from)
            order.append(blocks[index + 1].layers[0])
            blocks[index : index + 2] = [pairs[index]]
        return order


def steps(count: int, description: str) -> Iterator[int]:
    """Yield the number of blocks before each step, with progress; a step tries every block and runs those left."""
    left = range(count, 1, -1)
    work = sum(each**2 for each in left)
    return track(left, description=description, total=count - 1, works=lambda each: each**2, whole=work)


class LayerSearch:
    """Model whose layers can run in any selection, on sequences with a recorded forward pass."""

    def __init__(self, model: PreTrainedModel, ids_ST: Tensor, share: Share = ALONE) -> None:
        self.share = share
        family = FAMILIES[model.config.model_type]
        layers = model.get_submodule(family.layer_prefix.rstrip("."))
        assert isinstance(layers, nn.ModuleList)
        self.model, self.layers = model, layers
        self.final_norm = model.get_submodule(family.outside["final_norm"].name)
        head = model.get_output_embeddings()
        assert head is not None
        self.head = head
        self.passages = [self.passage(ids_1T) for ids_1T in ids_ST.to(model.device).split(1)]

    def passage(self, ids_1T: Tensor) -> Passage:
        noted: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

        def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            noted.append((args, kwargs))

        with ExitStack() as hooks:
            for layer in self.layers:
                hooks.enter_context(removable(layer.register_forward_pre_hook(note, with_kwargs=True)))
            exit_1TH = read_text(self.model, ids_1T)
        calls = [(args[1:], kwargs) for args, kwargs in noted]
        return Passage(entry=noted[0][0][0], calls=calls, exit=exit_1TH)

    def single_layers(self) -> list[Block]:
        return [Block((layer,)) for layer in range(len(self.layers))]

    def merged(self, group: tuple[int, ...]) -> Block:
        return Block(group, merged_weights([self.layers[layer] for layer in group]))

    def nearest(self, blocks: Sequence[Block], tails: Sequence[Tail], distance_from: DistanceFrom) -> int:
        """Return the candidate with the smallest sum of distances over all sequences; ties go to the first.

        All sequences have the same length, so it also has the smallest mean over tokens. Distances are never negative,
        so a candidate is dropped once its sum exceeds the total of the candidate that did best on the first sequence.

        Args:
            tails: For each candidate, an index of blocks, the blocks that follow blocks[:candidate] in it.
        """
        first, *others = self.passages
        total_C = self.distances(first, blocks, range(len(tails)), tails, distance_from)
        best = min(total_C, key=total_C.__getitem__)
        bound = total_C[best] + sum(self.distances(p, blocks, [best], tails, distance_from)[best] for p in others)
        for passage in others:
            alive = [candidate for candidate in total_C if candidate == best or total_C[candidate] <= bound]
            distance_C = self.distances(passage, blocks, alive, tails, distance_from)
            total_C = {candidate: total_C[candidate] + distance_C[candidate] for candidate in alive}
        return min(total_C, key=total_C.__getitem__)

    def distances(
        self,
        passage: Passage,
        blocks: Sequence[Block],
        candidates: Sequence[int],
        tails: Sequence[Tail],
        distance_from: DistanceFrom,
    ) -> dict[int, float]:
        """Return distance_C of candidates, ascending indices of blocks, on one sequence; shared over processes."""
        distance, stream_1TH = distance_from(passage), passage.entry
        own, reached = [], 0
        for candidate in self.share.mine(candidates):
            stream_1TH = self.through(blocks[reached:candidate], stream_1TH, passage)
            norm_1TH = self.final_norm(self.through(tails[candidate], stream_1TH, passage))
            own.append(float(distance(for_head(self.model, norm_1TH))))
            if not isfinite(own[-1]):
                raise UserError(
                    f"The target overflows in {self.model.dtype} on the calibration text when layers are taken out or "
                    "merged. Set target.dtype to bfloat16 or float32, or choose another architecture.method."
                )
            reached = candidate
        return dict(zip(candidates, self.share.together(own), strict=True))

    def through(self, blocks: Sequence[Block], stream_1TH: Tensor, passage: Passage) -> Tensor:
        for block in blocks:
            first = block.layers[0]
            args, kwargs = passage.calls[first]
            output = functional_call(self.layers[first], dict(block.weights), (stream_1TH, *args), kwargs)
            stream_1TH = output if isinstance(output, Tensor) else output[0]
        return stream_1TH

    def kl_from(self, passage: Passage) -> Callable[[Tensor], Tensor]:
        """Return the function that computes KL(whole model || changed model) in nats, mean over tokens."""
        logp_1TV = self.log_probabilities(passage.exit)
        p_1TV = logp_1TV.exp()
        return lambda exit_1TH: (p_1TV * (logp_1TV - self.log_probabilities(exit_1TH))).sum(dim=-1).mean()

    def log_probabilities(self, exit_1TH: Tensor) -> Tensor:
        logits_1TV = self.head(exit_1TH).float() / getattr(self.model.config, "logits_scaling", 1.0)  # Granite only
        cap = getattr(self.model.config, "final_logit_softcapping", None)  # Gemma only
        if cap is not None:
            logits_1TV = cap * (logits_1TV / cap).tanh()
        return logits_1TV.log_softmax(dim=-1)

    def turn_from(self, passage: Passage) -> Callable[[Tensor], Tensor]:
        """Return the function that computes 1 - cosine of the final hidden states, mean over tokens."""
        return lambda exit_1TH: (1 - F.cosine_similarity(passage.exit.float(), exit_1TH.float(), dim=-1)).mean()


def merged_weights(layers: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Return the first layer's weights plus the later layers' differences, summed in float32, in the first's dtype."""
    merged = {}
    for name, first in layers[0].named_parameters():
        total = first.float()
        for other in layers[1:]:
            total = total + (other.get_parameter(name).float() - first.float())
        merged[name] = total.to(first.dtype)
    return merged
