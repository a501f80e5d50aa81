"""Importance scores of every layer, head, neuron, expert and channel on calibration text: one pass, running sums only.

Everything is computed in float64 from activations and weights in the model's dtype. If layers are read from disk one
by one, the forward pass of a batch restarts for each layer (eval.large_targets). Each module therefore counts only its
first input for a batch: its weights are loaded then, and later inputs are meaningless.

A layer runs with the arguments the model gave it (mask, positions), recorded once: they do not depend on the layers
before it, so they stay valid wherever the layer ends up. Layers before a change run once for all candidates of a step.

Shape suffixes used in this file:
    S = sequences
    B = sequences in the batch
    T = tokens per sequence
    L = layers
    H = channels
    F = neurons
    N = query heads
    K = key/value heads
    D = head width
    Q = N x D
    X = inputs of a linear layer
    V = vocabulary
    C = candidates of a step
    E = experts
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812 (as everyone calls it)
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from architectures.console import track
from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.families.family import Family, LayerPart
from architectures.files import require_regular, unreadable
from architectures.pruning.depth import decoder_layers
from architectures.pruning.prune import READERS
from architectures.shapes import Shape
from architectures.sharing import ALONE, Share
from architectures.vocabulary_head import for_head, read_text

COUNTED_AXES = {"hidden", "intermediate", "query", "key_value", "experts"}  # axes of matrices in the magnitude scores
ROWS_AT_ONCE = 1024  # rows of a matrix converted to float64 at a time
FLOAT64_BYTES = 8
COPIES = 4  # in float64, of each activation: itself, its squares, its norms, and temporaries of their sums

WeightOf = Callable[[str], Tensor]  # returns a parameter by its name in the model


class Sums(dict[Hashable, Tensor]):
    """Running sums by name."""

    def add(self, name: Hashable, value: Tensor) -> None:
        self[name] = self[name] + value if name in self else value


@dataclass(eq=False)
class Reading:
    """Calibration batch and the state of its forward pass.

    Attributes:
        seen: Modules whose input was counted.
        before: Residual stream one position earlier.
    """

    ids_BT: Tensor
    seen: set[Hashable] = field(default_factory=set)
    before: Tensor | None = None


class Watch:
    """Model with hooks that sum up activations."""

    def __init__(self, model: PreTrainedModel, family: Family, shape: Shape) -> None:
        self.model, self.family, self.shape = model, family, shape
        self.sums = Sums()
        self.reading = Reading(torch.empty(0))

    def read(self, reading: Reading) -> None:
        self.reading = reading
        read_text(self.model, reading.ids_BT)

    def add(self, name: Hashable, value: Tensor) -> None:
        self.sums.add(name, value.to(self.model.device))

    def is_first(self, name: Hashable) -> bool:
        """Return True once per name and batch."""
        seen = self.reading.seen
        return name not in seen and not seen.add(name)

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Register the hooks for the scores of the family while the block runs."""
        family, layers = self.family, self.shape.layers
        final_norm = family.outside["final_norm"].name
        with ExitStack() as hooks:
            # The residual stream before every layer, and after the last.
            stream = [*(f"{family.layer_prefix}{layer}" for layer in range(layers)), final_norm]
            for position, name in enumerate(stream):
                hooks.enter_context(self.before(name, ("stream", position), self.add_stream))
            if family.width:
                # The inputs of the output projections of neurons and heads, or what a router outputs, and the inputs
                # of attention and feed-forward.
                roles = ("attention_output",) if self.shape.experts else ("attention_output", "ffn_down")
                for layer in range(layers):
                    for role in roles:
                        hooks.enter_context(
                            self.before(family.layer_module(layer, role), (role, layer), self.add_input)
                        )
                    if self.shape.experts:
                        name = family.layer_module(layer, "router")
                        hooks.enter_context(self.behind(name, ("router", layer), self.add_routing))
                    for norm, linear in zip(READERS, ("query", "ffn_gate"), strict=True):
                        if norm in family.layer:
                            name = family.layer_module(layer, norm)
                            hooks.enter_context(self.behind(name, (norm, layer), self.add_read))
                        else:
                            name = family.layer_module(layer, linear)
                            hooks.enter_context(self.before(name, (linear, layer), self.add_read))
                hooks.enter_context(self.behind(final_norm, ("final_norm", layers), self.add_read))
            yield

    def before(self, name: str, place: tuple[str, int], add: Callable[[str, int, Tensor], None]) -> RemovableHandle:

        def hook(_: nn.Module, args: tuple[Any, ...]) -> None:
            if self.is_first(place):
                add(*place, args[0])

        return self.model.get_submodule(name).register_forward_pre_hook(hook)

    def behind(self, name: str, place: tuple[str, int], add: Callable[[str, int, Any], None]) -> RemovableHandle:

        def hook(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
            if self.is_first(place):
                add(*place, output)

        return self.model.get_submodule(name).register_forward_hook(hook)

    def add_stream(self, _: str, position: int, stream_BTH: Tensor) -> None:
        """Sum up 1 - cos between the stream here and one position earlier."""
        if position == 0:
            self.add(("tokens", 0), torch.tensor(stream_BTH.shape[0] * stream_BTH.shape[1]))
        else:
            assert self.reading.before is not None  # the position before was read
            before_BTH = self.reading.before.to(stream_BTH.device).double()
            turn_BT = 1 - F.cosine_similarity(before_BTH, stream_BTH.double(), dim=-1)
            self.add(("influence", position - 1), turn_BT.sum())
        self.reading.before = stream_BTH.clone() if position < self.shape.layers else None

    def add_input(self, role: str, layer: int, read_BTX: Tensor) -> None:
        """Sum up the inputs of a linear layer, which are neurons or the channels of heads."""
        x_BTX = read_BTX.double()
        self.add(("input", role, layer), x_BTX.sum(dim=(0, 1)))
        self.add(("squares", role, layer), x_BTX.square().sum(dim=(0, 1)))
        is_heads = role == "attention_output"
        sizes = x_BTX.unflatten(-1, (self.shape.heads, -1)).norm(dim=-1) if is_heads else x_BTX.abs()
        self.add(("activation", role, layer), sizes.mean(dim=1).square().sum(dim=0))

    def add_read(self, role: str, layer: int, x_BTH: Tensor) -> None:
        """Sum up the inputs of attention or feed-forward."""
        self.add(("read", role, layer), x_BTH.double().abs().mean(dim=1).square().sum(dim=0))

    def add_routing(self, role: str, layer: int, output: tuple[Tensor, Tensor, Tensor]) -> None:
        """Sum up each expert's router probability over the tokens that use it; from logits, weights and indices."""
        p_XE = output[0].double().softmax(dim=-1)
        chosen_XE = torch.zeros_like(p_XE).scatter_(-1, output[2], 1)
        self.add((role, layer), (p_XE * chosen_XE).sum(dim=0))


ReadTogether = Callable[[Watch, Sequence[Reading]], Iterator[None]]


@dataclass(frozen=True)
class Access:
    """Access to a model that is not whole on one device.

    Attributes:
        weight_of: Returns a weight by name.
        read_together: Runs the model on all batches, each possibly several times, and yields once per batch; None runs
            one batch after the other.
    """

    weight_of: WeightOf
    read_together: ReadTogether | None = None


def watching_bytes(shape: Shape) -> int:
    """Return the maximum bytes that one token takes during the sums; two positions of the stream are in memory."""
    return FLOAT64_BYTES * COPIES * max(shape.intermediate, shape.axis("query"), 2 * shape.hidden)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Disable dropout inside the block, and restore every module's mode after it."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def activation_scores(
    model: PreTrainedModel,
    ids_ST: Tensor,
    *,
    batch_size: int = 1,
    access: Access | None = None,
) -> dict[str, NDArray[np.float64]]:
    """Compute the scores of `architectures.pruning.plan`, except the two layer orders.

    Models of which only layers can be pruned have only block_influence_L. Models with an encoder read text without
    prompts as in architectures.vocabulary_head.

    Sources: block_influence_L: Men et al. 2024, "ShortGPT", sec. 3 (arXiv 2403.03853). activation.*: Muralidharan et
    al. 2024, "Compact Language Models via Pruning and Knowledge Distillation" (Minitron), sec. 2.2 (arXiv 2407.14679),
    with its best aggregation: mean over the sequence, L2 over the sequences; of an expert, the sum of its router
    probability over the tokens that use it. flap.*: An et al. 2024, "FLAP", sec. 3 (arXiv 2312.11983): variance of an
    input times the squared norm of its weights, not standardised, as every layer keeps the same number. magnitude.*:
    L2 norm of the weights of a part.

    Args:
        model: With its head; left unchanged.
        batch_size: Sequences at once. No score depends on it.
        access: None for a model that is whole on one device.

    Raises:
        UserError: If an activation or weight is not finite.
    """
    if model.config.model_type not in FAMILIES:
        return {"block_influence_L": require_finite("block_influence_L", influence_of_any(model, ids_ST), model.dtype)}
    family, shape = FAMILIES[model.config.model_type], Shape.from_config(model.config.to_dict())
    held = access or Access(model.get_parameter)
    watch, batches = Watch(model, family, shape), ids_ST.to(model.device).split(batch_size)
    with evaluating(model), torch.inference_mode():
        with watch.hooks():
            readings = [Reading(ids_BT) for ids_BT in batches]
            read = map(watch.read, readings) if held.read_together is None else held.read_together(watch, readings)
            for _ in track(read, description="Importance scores", total=len(readings)):
                pass
        sums = watch.sums
        influence_L = torch.stack([sums["influence", layer] for layer in range(shape.layers)])
        scores = {"block_influence_L": influence_L / sums["tokens", 0]}  # an encoder has read some of the text
        if family.width:
            scores |= minitron_scores(sums, shape)
            scores |= flap_scores(held.weight_of, family, shape, sums, num_tokens=ids_ST.numel())
            scores |= magnitude_scores(held.weight_of, family, shape)
        return {name: require_finite(name, values, model.dtype) for name, values in scores.items()}


def influence_of_any(model: PreTrainedModel, ids_ST: Tensor) -> Tensor:
    """Return block_influence_L of a model of any family, one sequence at a time."""
    _, layers = decoder_layers(model)
    sums = Sums()

    def compare(layer: int, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        before = args[0] if args else kwargs["hidden_states"]
        after = output if isinstance(output, Tensor) else output[0]
        turn = 1 - F.cosine_similarity(before.double(), after.double(), dim=-1)
        sums.add(layer, turn.mean().to(model.device))

    with evaluating(model), torch.inference_mode(), ExitStack() as hooks:
        for layer, module in enumerate(layers):
            hooks.enter_context(module.register_forward_hook(partial(compare, layer), with_kwargs=True))
        for ids_1T in track(ids_ST.to(model.device).split(1), description="Importance scores", total=len(ids_ST)):
            model(input_ids=ids_1T, use_cache=False)
    return torch.stack([sums[layer] for layer in range(len(layers))]) / len(ids_ST)


def require_finite(name: str, values: Tensor, dtype: torch.dtype) -> NDArray[np.float64]:
    """Convert finite values to numpy."""
    if not values.isfinite().all():
        raise UserError(
            f"{name}: some scores are not finite: activations or weights of the target overflow in {dtype}. "
            "Set target.dtype to bfloat16 or float32, or download the checkpoint again."
        )
    return values.cpu().numpy()


def minitron_scores(sums: Sums, shape: Shape) -> dict[str, Tensor]:
    """Return the root of the sums over sequences; a channel's are summed over all modules that read it."""
    heads = [sums["activation", "attention_output", layer] for layer in range(shape.layers)]
    read = [sums[name] for name in sums if isinstance(name, tuple) and name[0] == "read"]
    if shape.experts:
        feed_forward = {"activation.experts_LE": torch.stack([sums["router", layer] for layer in range(shape.layers)])}
    else:
        neurons = [sums["activation", "ffn_down", layer] for layer in range(shape.layers)]
        feed_forward = {"activation.neurons_LF": torch.stack(neurons).sqrt()}
    return {
        **feed_forward,
        "activation.heads_LN": torch.stack(heads).sqrt(),
        "activation.channels_H": torch.stack(read).sqrt().sum(dim=0),
    }


def flap_scores(weight_of: WeightOf, family: Family, shape: Shape, sums: Sums, *, num_tokens: int) -> dict[str, Tensor]:
    """Return each input's variance over all tokens times the squared norm of its weights, summed per head."""

    def variances(role: str, layer: int) -> Tensor:
        weight = weight_of(f"{family.layer_module(layer, role)}.weight")
        mean_X = sums["input", role, layer] / num_tokens
        variance_X = (sums["squares", role, layer] / num_tokens - mean_X.square()).clamp_min(0)
        return variance_X * column_squares(weight)

    heads_LQ = torch.stack([variances("attention_output", layer) for layer in range(shape.layers)])
    scores = {"flap.heads_LN": heads_LQ.unflatten(-1, (shape.heads, shape.head_dim)).sum(dim=-1)}
    if not shape.experts:
        scores["flap.neurons_LF"] = torch.stack([variances("ffn_down", layer) for layer in range(shape.layers)])
    return scores


def magnitude_scores(weight_of: WeightOf, family: Family, shape: Shape) -> dict[str, Tensor]:
    """Return the root of the sum of squares of all matrix weights of a part.

    A head has its rows of the query, those of the key and value it shares with its group, and its columns of the
    output; an expert has its matrices and its row of the router. A tied embedding counts once.
    """

    def squares_of(parts: Mapping[str, LayerPart], prefix: str = "") -> Sums:
        matrices = {part.stacked or f"{part.name}.weight": part for part in parts.values()}
        return axis_squares(((part, weight_of(f"{prefix}{name}")) for name, part in matrices.items()), shape)

    outside = {role: part for role, part in family.outside.items() if not (role == "head" and shape.tied)}
    layers = [squares_of(family.layer, f"{family.layer_prefix}{layer}.") for layer in range(shape.layers)]
    channels = [squares["hidden"] for squares in (squares_of(outside), *layers)]
    own_LN = torch.stack([squares["query"].unflatten(0, (shape.heads, -1)).sum(dim=-1) for squares in layers])
    shared_LK = torch.stack([squares["key_value"].unflatten(0, (shape.kv_heads, -1)).sum(dim=-1) for squares in layers])
    name, axis = ("experts_LE", "experts") if shape.experts else ("neurons_LF", "intermediate")
    return {
        f"magnitude.{name}": torch.stack([squares[axis] for squares in layers]).sqrt(),
        "magnitude.heads_LN": (own_LN + shared_LK.repeat_interleave(shape.heads // shape.kv_heads, dim=-1)).sqrt(),
        "magnitude.channels_H": torch.stack(channels).sum(dim=0).sqrt(),
    }


def axis_squares(matrices: Iterable[tuple[LayerPart, Tensor]], shape: Shape) -> Sums:
    """Return for each axis the sums of squares per index, over all matrices with that axis."""
    sums = Sums()
    for part, weight in matrices:
        for dim, fused in enumerate(part.axes):
            axes = fused.split("+")
            if len(part.axes) > 1 and COUNTED_AXES.issuperset(axes):
                squares_X = column_squares(weight.movedim(dim, -1).flatten(0, -2))
                for axis, piece in zip(axes, squares_X.split([shape.axis(axis) for axis in axes]), strict=True):
                    sums.add(axis, piece)
    return sums


def column_squares(weight: Tensor) -> Tensor:
    return torch.stack([rows.double().square().sum(dim=0) for rows in weight.split(ROWS_AT_ONCE)]).sum(dim=0)


HINT = "Set architecture.calibration.text to a UTF-8 text file."
MAX_PARAGRAPH_CHARS = 100_000  # a file without blank lines is read in pieces of this size, never as a whole
SEQUENCE_LEN = 256


def calibration_sequences(
    texts: Iterable[str], tokenizer: Any, *, tokens: int, context_tokens: int | None = None
) -> Tensor:
    """Concatenate texts into ids_ST of 256 tokens per sequence; fewer than 1,024 tokens make four shorter sequences.

    Texts are separated by the end-of-sequence token, if the tokenizer has one. Reads no more texts than needed.

    Args:
        texts: Plain texts; empty ones are skipped.
        tokens: Maximum number used, >= 4.
        context_tokens: Context length of the model, which limits the sequences; None if unlimited.
    """
    sequence_len = min(SEQUENCE_LEN, tokens // 4, context_tokens or SEQUENCE_LEN)
    needed = tokens // sequence_len * sequence_len
    ids: list[int] = []
    for text in texts:
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        if ids and token_ids and tokenizer.eos_token_id is not None:
            ids.append(tokenizer.eos_token_id)
        ids += token_ids
        if len(ids) >= needed:
            return torch.tensor(ids[:needed]).view(-1, sequence_len)
    raise UserError(
        f"The calibration text has {len(ids)} tokens, but {needed} are needed ({needed // sequence_len} sequences of "
        f"{sequence_len}). Lower architecture.calibration.tokens, or set architecture.calibration.text "
        "to a longer text."
    )


def read_calibration_text(file: Path) -> Iterator[str]:
    """Yield the paragraphs of a plain text file, separated by blank lines.

    Raises:
        UserError: On the first `next`, if the file cannot be read or is empty.
    """
    has_text = False
    try:
        require_regular(file, hint=HINT)
        with file.open(encoding="utf-8") as stream:
            for paragraph in paragraphs(iter(partial(stream.readline, MAX_PARAGRAPH_CHARS), "")):
                has_text = True
                yield paragraph
    except OSError as error:
        raise UserError(unreadable(file, error, HINT)) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: cannot be read as text ({error}). {HINT}") from error
    if not has_text:
        raise UserError(f"{file}: contains no text. Set architecture.calibration.text to another file.")


def paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Join adjacent lines that are not blank; long paragraphs are split."""
    gathered, num_chars = [], 0
    for line in lines:
        if gathered and (not line.strip() or num_chars > MAX_PARAGRAPH_CHARS):
            yield "".join(gathered)
            gathered, num_chars = [], 0
        if line.strip():
            gathered.append(line)
            num_chars += len(line)
    if gathered:
        yield "".join(gathered)


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
        model: Left unchanged. UserError if it overflows.
        share: This process's part of the candidates of each step; all processes return the same order.
    """
    with evaluating(model), torch.inference_mode():
        opens = LayerSearch if model.config.model_type in FAMILIES else WholeModelSearch
        search = opens(model, ids_ST, share)
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
                hooks.enter_context(layer.register_forward_pre_hook(note, with_kwargs=True))
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
        distance = distance_from(passage)
        exits = self.exits(passage, blocks, self.share.mine(candidates), tails)
        own = [self.finite(distance(exit_1TH)) for exit_1TH in exits]
        return dict(zip(candidates, self.share.together(own), strict=True))

    def exits(
        self, passage: Passage, blocks: Sequence[Block], candidates: Sequence[int], tails: Sequence[Tail]
    ) -> Iterator[Tensor]:
        """Yield the `exit` of a passage through each candidate; layers before the next candidate run once."""
        stream_1TH, reached = passage.entry, 0
        for candidate in candidates:
            stream_1TH = self.through(blocks[reached:candidate], stream_1TH, passage)
            yield for_head(self.model, self.final_norm(self.through(tails[candidate], stream_1TH, passage)))
            reached = candidate

    def finite(self, distance: Tensor) -> float:
        if not isfinite(distance):
            raise UserError(
                f"The target overflows in {self.model.dtype} on the calibration text when layers are removed or "
                "merged. Set target.dtype to bfloat16 or float32, or choose another architecture.method."
            )
        return float(distance)

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


class WholeModelSearch(LayerSearch):
    """Search in a model of any family: each candidate is a forward pass of the model with its layers skipped.

    Takes memory for the logits of the whole text.
    """

    def __init__(self, model: PreTrainedModel, ids_ST: Tensor, share: Share = ALONE) -> None:
        self.share, self.model = share, model
        _, self.layers = decoder_layers(model)
        passages = [(ids_1T, self.logits(ids_1T, set())) for ids_1T in ids_ST.to(model.device).split(1)]
        self.passages = [Passage(entry=ids_1T, calls=[], exit=logits) for ids_1T, logits in passages]

    def logits(self, ids_1T: Tensor, removed: Collection[int]) -> Tensor:
        with skipping(self.layers[layer] for layer in removed):
            return self.model(input_ids=ids_1T, use_cache=False).logits

    def exits(
        self, passage: Passage, blocks: Sequence[Block], candidates: Sequence[int], tails: Sequence[Tail]
    ) -> Iterator[Tensor]:
        """Yield the logits of each candidate."""
        for candidate in candidates:
            left = {layer for block in (*blocks[:candidate], *tails[candidate]) for layer in block.layers}
            yield self.logits(passage.entry, [layer for layer in range(len(self.layers)) if layer not in left])

    def log_probabilities(self, exit_1TH: Tensor) -> Tensor:
        return exit_1TH.float().log_softmax(dim=-1)  # the model's logits


@contextmanager
def skipping(layers: Iterable[nn.Module]) -> Iterator[None]:
    """Replace layers by the identity inside the block."""
    replaced = [(layer, vars(layer).get("forward")) for layer in layers]
    for layer, _ in replaced:
        layer.forward = partial(identity_like, layer.forward)
    try:
        yield
    finally:
        for layer, forward in replaced:
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward


def identity_like(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return a layer's input in the form of its output: a tensor, or a tuple that begins with it."""
    stream = args[0] if args else kwargs["hidden_states"]
    output = forward(*args, **kwargs)
    return stream if isinstance(output, Tensor) else (stream, *output[1:])


def merged_weights(layers: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Return the first layer's weights plus the later layers' differences, summed in float32, in the first's dtype."""
    merged = {}
    for name, first in layers[0].named_parameters():
        total = first.float()
        for other in layers[1:]:
            total = total + (other.get_parameter(name).float() - first.float())
        merged[name] = total.to(first.dtype)
    return merged
