"""Importance scores of every layer, head, neuron and channel on calibration text: one pass, running sums only.

Everything is computed in float64 from activations and weights in the model's dtype. If layers are read from disk one
by one, the forward pass of a batch restarts for each layer (eval.large_targets). Each module therefore counts only its
first input for a batch: its weights are loaded then, and later inputs are meaningless.

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
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (as everyone calls it)
from transformers import PreTrainedModel

from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.families.family import Family, LayerPart
from architectures.files import require_regular, unreadable
from architectures.progress import track
from architectures.pruning.prune import READERS
from architectures.shapes import Shape
from architectures.vocabulary_head import read_text

COUNTED_AXES = {"hidden", "intermediate", "query", "key_value"}  # axes of matrices in the magnitude scores
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
                # The inputs of the output projections of neurons and heads, and the inputs of attention and
                # feed-forward.
                for layer in range(layers):
                    for role in ("attention_output", "ffn_down"):
                        hooks.enter_context(
                            self.before(family.layer_module(layer, role), (role, layer), self.add_input)
                        )
                    for norm, linear in zip(READERS, ("query", "ffn_gate"), strict=True):
                        if norm in family.layer:
                            hooks.enter_context(self.behind(family.layer_module(layer, norm), (norm, layer)))
                        else:
                            name = family.layer_module(layer, linear)
                            hooks.enter_context(self.before(name, (linear, layer), self.add_read))
                hooks.enter_context(self.behind(final_norm, ("final_norm", layers)))
            yield

    def before(self, name: str, place: tuple[str, int], add: Callable[[str, int, Tensor], None]) -> Any:

        def hook(_: nn.Module, args: tuple[Any, ...]) -> None:
            if self.is_first(place):
                add(*place, args[0])

        return removable(self.model.get_submodule(name).register_forward_pre_hook(hook))

    def behind(self, name: str, place: tuple[str, int]) -> Any:

        def hook(_module: nn.Module, _args: tuple[Any, ...], y_BTH: Tensor) -> None:
            if self.is_first(place):
                self.add_read(*place, y_BTH)

        return removable(self.model.get_submodule(name).register_forward_hook(hook))

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


@contextmanager
def removable(handle: Any) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


def activation_scores(
    model: PreTrainedModel,
    ids_ST: Tensor,
    *,
    batch_size: int = 1,
    access: Access | None = None,
) -> dict[str, NDArray[np.float64]]:
    """Compute the scores of `architectures.pruning.plan`, except the two layer orders.

    Families of which only layers can be pruned have only block_influence_L. Models with an encoder read text without
    prompts as in architectures.vocabulary_head.

    Sources: block_influence_L: Men et al. 2024, "ShortGPT", sec. 3 (arXiv 2403.03853). activation.*: Muralidharan et
    al. 2024, "Compact Language Models via Pruning and Knowledge Distillation" (Minitron), sec. 2.2 (arXiv 2407.14679),
    with its best aggregation: mean over the sequence, L2 over the sequences. flap.*: An et al. 2024, "FLAP", sec. 3
    (arXiv 2312.11983): variance of an input times the squared norm of its weights, not standardised, as every layer
    keeps the same number. magnitude.*: L2 norm of the weights of a part.

    Args:
        model: Of a known family, with its head; left unchanged.
        batch_size: Sequences at once. No score depends on it.
        access: None for a model that is whole on one device.

    Raises:
        UserError: If an activation or weight is not finite.
    """
    family, shape = FAMILIES[model.config.model_type], Shape.from_config(model.config.to_dict())
    held = access or Access(model.get_parameter)
    watch, batches = Watch(model, family, shape), ids_ST.to(model.device).split(batch_size)
    with evaluating(model), torch.inference_mode():
        with watch.hooks():
            readings = [Reading(ids_BT) for ids_BT in batches]
            read = map(watch.read, readings) if held.read_together is None else held.read_together(watch, readings)
            for _ in track(read, description="Scores of the target's parts", total=len(readings)):
                pass
        sums = watch.sums
        influence_L = torch.stack([sums["influence", layer] for layer in range(shape.layers)])
        scores = {"block_influence_L": influence_L / sums["tokens", 0]}  # an encoder has read some of the text
        if family.width:
            scores |= minitron_scores(sums, shape)
            scores |= flap_scores(held.weight_of, family, shape, sums, num_tokens=ids_ST.numel())
            scores |= magnitude_scores(held.weight_of, family, shape)
        return {name: require_finite(name, values, model.dtype) for name, values in scores.items()}


def require_finite(name: str, values: Tensor, dtype: torch.dtype) -> NDArray[np.float64]:
    """Convert finite values to numpy."""
    if not values.isfinite().all():
        raise UserError(
            f"{name}: not every score is finite, as activations or weights of the target overflow in {dtype}. "
            "Set target.dtype to bfloat16 or float32, or fetch the checkpoint again."
        )
    return values.cpu().numpy()


def minitron_scores(sums: Sums, shape: Shape) -> dict[str, Tensor]:
    """Return the root of the sums over sequences; a channel's are summed over all modules that read it."""
    neurons = [sums["activation", "ffn_down", layer] for layer in range(shape.layers)]
    heads = [sums["activation", "attention_output", layer] for layer in range(shape.layers)]
    read = [sums[name] for name in sums if isinstance(name, tuple) and name[0] == "read"]
    return {
        "activation.neurons_LF": torch.stack(neurons).sqrt(),
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
    return {
        "flap.neurons_LF": torch.stack([variances("ffn_down", layer) for layer in range(shape.layers)]),
        "flap.heads_LN": heads_LQ.unflatten(-1, (shape.heads, shape.head_dim)).sum(dim=-1),
    }


def magnitude_scores(weight_of: WeightOf, family: Family, shape: Shape) -> dict[str, Tensor]:
    """Return the root of the sum of squares of all matrix weights of a part.

    A head has its rows of the query, those of the key and value it shares with its group, and its columns of the
    output. A tied embedding counts once.
    """

    def squares_of(parts: Mapping[str, LayerPart], prefix: str = "") -> Sums:
        return axis_squares(((part, weight_of(f"{prefix}{part.name}.weight")) for part in parts.values()), shape)

    outside = {role: part for role, part in family.outside.items() if not (role == "head" and shape.tied)}
    layers = [squares_of(family.layer, f"{family.layer_prefix}{layer}.") for layer in range(shape.layers)]
    channels = [squares["hidden"] for squares in (squares_of(outside), *layers)]
    own_LN = torch.stack([squares["query"].unflatten(0, (shape.heads, -1)).sum(dim=-1) for squares in layers])
    shared_LK = torch.stack([squares["key_value"].unflatten(0, (shape.kv_heads, -1)).sum(dim=-1) for squares in layers])
    return {
        "magnitude.neurons_LF": torch.stack([squares["intermediate"] for squares in layers]).sqrt(),
        "magnitude.heads_LN": (own_LN + shared_LK.repeat_interleave(shape.heads // shape.kv_heads, dim=-1)).sqrt(),
        "magnitude.channels_H": torch.stack(channels).sum(dim=0).sqrt(),
    }


def axis_squares(matrices: Iterable[tuple[LayerPart, Tensor]], shape: Shape) -> Sums:
    """Return for each axis the sums of squares per index, over all matrices with that axis."""
    sums = Sums()
    for part, weight in matrices:
        for dim, fused in enumerate(part.axes):
            axes = fused.split("+")
            if len(part.axes) == 2 and COUNTED_AXES.issuperset(axes):
                squares_X = column_squares(weight if dim == 1 else weight.T)
                for axis, piece in zip(axes, squares_X.split([shape.axis(axis) for axis in axes]), strict=True):
                    sums.add(axis, piece)
    return sums


def column_squares(weight: Tensor) -> Tensor:
    return torch.stack([rows.double().square().sum(dim=0) for rows in weight.split(ROWS_AT_ONCE)]).sum(dim=0)


HINT = "Give a UTF-8 text file as architecture.calibration.text."
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
        f"The calibration text has {len(ids)} tokens, {needed} are needed ({needed // sequence_len} sequences of "
        f"{sequence_len}). Lower architecture.calibration.tokens, or give a longer text as "
        "architecture.calibration.text."
    )


def read_calibration_text(file: Path) -> Iterator[str]:
    """Yield the paragraphs of a plain text file, separated by blank lines.

    Raises:
        UserError: On the first `next`, if the file cannot be read or is empty.
    """
    has_text = False
    try:
        require_regular(file, remedy=HINT)
        with file.open(encoding="utf-8") as stream:
            for paragraph in paragraphs(iter(partial(stream.readline, MAX_PARAGRAPH_CHARS), "")):
                has_text = True
                yield paragraph
    except OSError as error:
        raise UserError(unreadable(file, error, HINT)) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: cannot be read as text ({error}). {HINT}") from error
    if not has_text:
        raise UserError(f"{file}: holds no text. Give another file as architecture.calibration.text.")


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
