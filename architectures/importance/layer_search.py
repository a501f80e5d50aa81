"""In which order a target loses its layers: taken out one by one, or merged with their neighbours.

A layer is run with what the model itself gave it (mask, positions). Recorded once, that stays right wherever the layer
ends up, as it does not depend on the layers before. What lies before a change is run once for all candidates of a step.

Shape suffixes used in this file:
    S = sequences, T = tokens per sequence, V = vocabulary, H = hidden width, C = candidates of a step
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812 (as everyone calls it)
from transformers import PreTrainedModel

from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.importance.activation_scores import evaluating, removable
from architectures.kept import Arrays, Kept
from architectures.progress.track import track
from architectures.reading import for_head, read_text
from architectures.sharing import ALONE, Share


@dataclass(frozen=True)
class Block:
    """Neighbouring layers of the target that run as one.

    Attributes:
        layers: Of the target; the first is the module that runs.
        weights: In place of the module's own; empty where it runs with those.
    """

    layers: tuple[int, ...]
    weights: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Passage:
    """One sequence on its way through the whole model.

    Attributes:
        entry: x_1TH, the residual stream before the first layer.
        calls: For each layer, what the model gives it beside the stream.
        exit: x_1TH, what the head reads of the stream behind the final norm.
    """

    entry: Tensor
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    exit: Tensor


Tail = Callable[[int], Sequence[Block]]


class Shrinking(TypedDict):
    """Steps that become shorter, as `track` takes them."""

    total: int
    works: Callable[[int], float]
    whole: float


DistanceFrom = Callable[[Passage], Callable[[Tensor], Tensor]]  # of the whole model to one with another exit_1TH


def removal_order(model: PreTrainedModel, ids_ST: Tensor, share: Share = ALONE, kept: Kept | None = None) -> list[int]:
    """num_layers - 1 layers: again and again the one without which the model changes least; of equals the earlier.

    The change is KL(whole model || cut model) in nats, mean over all tokens, from log-probabilities in float32. It is
    taken from the whole model at every step, so that errors do not add up unseen.

    Source: Song et al. 2024, "SLEB", sec. 3 (arXiv 2402.09025), with KL in place of perplexity.

    Args:
        model: Of a known family, with its head; left as it was.
        ids_ST: Calibration text.
        share: This process's part of the candidates of each step; all of them find the same order.
        kept: Where distances that were found are, and go now and then, so that an interrupted search finds no others.

    Raises:
        UserError: If the model, whole or cut, overflows.
    """
    with evaluating(model), torch.inference_mode():
        search = LayerSearch(model, ids_ST, share, KnownDistances("removal_order", kept, share))
        blocks, order = search.single_layers(), []
        for _ in track(steps_left(len(blocks)), description="Greedy removal of layers", **shrinking(len(blocks))):
            order += blocks.pop(search.nearest_layer(blocks)).layers
        return order


def merge_order(model: PreTrainedModel, ids_ST: Tensor, share: Share = ALONE, kept: Kept | None = None) -> list[int]:
    """num_layers - 1 layers, in the order in which each, with the group it leads, is merged into the group before it.

    Again and again those two neighbouring groups become one that leave the final hidden states (behind the final norm)
    most like the whole model's: the highest cosine, mean over all tokens, in float32; of equals the earlier. A group
    runs as its first layer with weights theta_first + sum_k (theta_k - theta_first), as architectures.pruning.slicing
    merges.

    Source: Yang et al. 2024, "LaCo", sec. 3 (arXiv 2402.11187). There a fixed number of layers is merged wherever a
    threshold allows it, from the top down; here the best pair is, which reaches any depth.

    Takes memory for a second copy of the layers: each pair is merged once, not at every step and sequence anew.

    Args:
        model: Of a known family, with its head; left as it was.
        ids_ST: Calibration text.
        share: As of removal_order.
        kept: Likewise.

    Raises:
        UserError: If the model, whole or merged, overflows.
    """
    with evaluating(model), torch.inference_mode():
        search = LayerSearch(model, ids_ST, share, KnownDistances("merge_order", kept, share))
        blocks, order = search.single_layers(), []
        pairs: list[Block] = []
        for _ in track(steps_left(len(blocks)), description="Merging of layers", **shrinking(len(blocks))):
            pairs = search.pairs(blocks, known=pairs)
            index = search.nearest_pair(blocks, pairs)
            order.append(blocks[index + 1].layers[0])
            blocks[index : index + 2] = [pairs[index]]
        return order


def steps_left(count: int) -> range:
    """How many blocks each step starts with."""
    return range(count, 1, -1)


def shrinking(count: int) -> Shrinking:
    """What there is to do in these steps, as `track` takes it: each tries every block, and runs all that are left."""
    return {"total": count - 1, "works": lambda left: left**2, "whole": sum(left**2 for left in steps_left(count))}


Distances = dict[int, float]  # by candidate


class KnownDistances:
    """Distances that a search has found, in the order in which it asks for them, which its inputs decide.

    Those of an interrupted search are recalled; this one adds to them.

    Args:
        name: Of the search.
        kept: Where they are, and go now and then; None to recall and keep nothing.
        share: Of processes that all ask the same, of which the first reads and writes.
    """

    def __init__(self, name: str, kept: Kept | None, share: Share) -> None:
        self.name, self.kept, self.leads = name, kept, share.leads
        self.found: list[Distances] = share.lead(lambda: unpacked(kept.read(name))) if kept is not None else []
        self.num_recalled, self.num_asked = len(self.found), 0

    def recall(self) -> Distances | None:
        """The distances that are asked for now; None where they must be found, and added."""
        self.num_asked += 1
        return self.found[self.num_asked - 1] if self.num_asked <= self.num_recalled else None

    def add(self, distances: Distances) -> None:
        """Note what was found."""
        self.found.append(distances)
        if self.kept is not None and self.leads and self.kept.is_due:
            self.kept.write(self.name, packed(self.found))


def packed(found: list[Distances]) -> Arrays:
    """Distances as arrays."""
    return {
        "counts": np.array([len(each) for each in found]),
        "candidates": np.array([candidate for each in found for candidate in each]),
        "values": np.array([value for each in found for value in each.values()]),
    }


def unpacked(arrays: Arrays | None) -> list[Distances]:
    """The same back, to the last bit; nothing of no arrays."""
    if arrays is None:
        return []
    pairs = zip(arrays["candidates"].tolist(), arrays["values"].tolist(), strict=True)
    return [dict(next(pairs) for _ in range(count)) for count in arrays["counts"].tolist()]


class LayerSearch:
    """A model whose layers can be run in any selection, on sequences whose passage through it is known."""

    def __init__(
        self, model: PreTrainedModel, ids_ST: Tensor, share: Share = ALONE, known: KnownDistances | None = None
    ) -> None:
        self.share, self.known = share, known or KnownDistances("", None, share)
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
        """Run the whole model on a sequence and note what each layer is given."""
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
        """The layers as they are."""
        return [Block((layer,)) for layer in range(len(self.layers))]

    def pairs(self, blocks: Sequence[Block], *, known: Sequence[Block]) -> list[Block]:
        """Every block and the one behind it as one; those known already are taken as they are."""
        by_layers = {block.layers: block for block in known}
        groups = [before.layers + behind.layers for before, behind in pairwise(blocks)]
        return [by_layers[group] if group in by_layers else self.merged(group) for group in groups]

    def merged(self, group: tuple[int, ...]) -> Block:
        """Some neighbouring layers as one."""
        return Block(group, merged_weights([self.layers[layer] for layer in group]))

    def nearest_layer(self, blocks: Sequence[Block]) -> int:
        """The index of the block without which the model changes least."""
        return self.nearest(blocks, len(blocks), lambda index: blocks[index + 1 :], self.kl_from)

    def nearest_pair(self, blocks: Sequence[Block], pairs: Sequence[Block]) -> int:
        """The index of the block whose merging with the one behind it changes the model least."""
        return self.nearest(blocks, len(pairs), lambda index: [pairs[index], *blocks[index + 2 :]], self.turn_from)

    def nearest(self, blocks: Sequence[Block], num_candidates: int, tail: Tail, distance_from: DistanceFrom) -> int:
        """The candidate with the least sum of distances over all sequences; of equals the first.

        All sequences have one length: the least mean over tokens too. Distances are never negative, so a candidate is
        given up as soon as it is beyond the whole sum of the one that did best on the first sequence.

        Args:
            blocks: The model as it stands.
            num_candidates: Each is an index of blocks, from 0.
            tail: For a candidate, what follows on blocks[:candidate] in it.
            distance_from: Gives the distance from the whole model on a sequence.
        """
        first, *others = self.passages
        total_C = self.distances(first, blocks, range(num_candidates), tail, distance_from)
        best = min(total_C, key=total_C.__getitem__)
        bound = total_C[best] + sum(self.distances(p, blocks, [best], tail, distance_from)[best] for p in others)
        for passage in others:
            alive = [candidate for candidate in total_C if candidate == best or total_C[candidate] <= bound]
            distance_C = self.distances(passage, blocks, alive, tail, distance_from)
            total_C = {candidate: total_C[candidate] + distance_C[candidate] for candidate in alive}
        return min(total_C, key=total_C.__getitem__)

    def distances(
        self,
        passage: Passage,
        blocks: Sequence[Block],
        candidates: Sequence[int],
        tail: Tail,
        distance_from: DistanceFrom,
    ) -> dict[int, float]:
        """distance_C of some candidates, ascending indices of blocks, on one sequence; each process takes some."""
        found = self.known.recall()
        if found is not None:
            return found
        mine = self.own_distances(passage, blocks, self.share.mine(candidates), tail, distance_from)
        found = {candidate: value for each in self.share.exchange(mine) for candidate, value in each.items()}
        in_order = {candidate: found[candidate] for candidate in candidates}  # of equals the first counts
        self.known.add(in_order)
        return in_order

    def own_distances(
        self,
        passage: Passage,
        blocks: Sequence[Block],
        candidates: Sequence[int],
        tail: Tail,
        distance_from: DistanceFrom,
    ) -> dict[int, float]:
        """The same by this process."""
        distance, stream_1TH = distance_from(passage), passage.entry
        distance_C: dict[int, float] = {}
        reached = 0
        for candidate in candidates:
            stream_1TH = self.through(blocks[reached:candidate], stream_1TH, passage)
            norm_1TH = self.final_norm(self.through(tail(candidate), stream_1TH, passage))
            exit_1TH = for_head(self.model, norm_1TH)
            distance_C[candidate], reached = self.require_finite(float(distance(exit_1TH))), candidate
        return distance_C

    def require_finite(self, value: float) -> float:
        """The value, if it is a number.

        Raises:
            UserError: If it is not.
        """
        if not isfinite(value):
            raise UserError(
                f"The target overflows in {self.model.dtype} on the calibration text when layers are taken out or "
                "merged. Set target.dtype to bfloat16 or float32, or choose another architecture.method."
            )
        return value

    def through(self, blocks: Sequence[Block], stream_1TH: Tensor, passage: Passage) -> Tensor:
        """The stream behind some blocks."""
        for block in blocks:
            first = block.layers[0]
            args, kwargs = passage.calls[first]
            output = functional_call(self.layers[first], dict(block.weights), (stream_1TH, *args), kwargs)
            stream_1TH = output if isinstance(output, Tensor) else output[0]
        return stream_1TH

    def kl_from(self, passage: Passage) -> Callable[[Tensor], Tensor]:
        """KL(whole model || changed model) in nats, mean over tokens."""
        logp_1TV = self.log_probabilities(passage.exit)
        p_1TV = logp_1TV.exp()
        return lambda exit_1TH: (p_1TV * (logp_1TV - self.log_probabilities(exit_1TH))).sum(dim=-1).mean()

    def log_probabilities(self, exit_1TH: Tensor) -> Tensor:
        """Of the next token, in float32."""
        logits_1TV = self.head(exit_1TH).float() / getattr(self.model.config, "logits_scaling", 1.0)  # of Granite
        cap = getattr(self.model.config, "final_logit_softcapping", None)  # Gemma alone has it
        if cap is not None:
            logits_1TV = cap * (logits_1TV / cap).tanh()
        return logits_1TV.log_softmax(dim=-1)

    def turn_from(self, passage: Passage) -> Callable[[Tensor], Tensor]:
        """1 - cosine of the final hidden states, mean over tokens."""
        return lambda exit_1TH: (1 - F.cosine_similarity(passage.exit.float(), exit_1TH.float(), dim=-1)).mean()


def merged_weights(layers: Sequence[nn.Module]) -> dict[str, Tensor]:
    """The sum of the layers' differences from the first, added to it in float32, in the first one's dtype."""
    merged = {}
    for name, first in layers[0].named_parameters():
        total = first.float()
        for other in layers[1:]:
            total = total + (other.get_parameter(name).float() - first.float())
        merged[name] = total.to(first.dtype)
    return merged
