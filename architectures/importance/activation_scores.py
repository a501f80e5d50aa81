"""How much each layer, head, neuron and channel of a target does on calibration text: one pass, sums only.

Everything is computed in float64 from the activations and weights as the model has them. Where layers are read from the
disk one by one, a text's call is begun anew for each (eval.large_targets). Of a module that counts which it reads the
first time: its turn has come then, and later it is shown anything.

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
from architectures.families.family import Family, Part
from architectures.files import require_regular, unreadable
from architectures.progress import track
from architectures.pruning.prune import READERS
from architectures.shapes import Shape
from architectures.vocabulary_head import read_text

COUNTED_AXES = {"hidden", "intermediate", "query", "key_value"}  # of matrices, for the magnitude scores
ROWS_AT_ONCE = 1024  # of a matrix in float64
FLOAT64_BYTES = 8
COPIES = 4  # in float64, of what is looked at: itself, its squares, its sizes, and what sums of them pass through

WeightOf = Callable[[str], Tensor]  # a parameter, by its name in the model


class Sums(dict[Hashable, Tensor]):
    """Running sums by name."""

    def add(self, name: Hashable, value: Tensor) -> None:
        """Add to the sum of this name, which starts at zero."""
        self[name] = self[name] + value if name in self else value


@dataclass(eq=False)
class Reading:
    """Texts that a model reads at once, and how far it has come with them.

    Attributes:
        ids_BT: The texts.
        seen: What has been looked at.
        before: The residual stream one position earlier.
    """

    ids_BT: Tensor
    seen: set[Hashable] = field(default_factory=set)
    before: Tensor | None = None


class Watch:
    """A model whose activations are summed up within `hooks`.

    Attributes:
        sums: So far.
    """

    def __init__(self, model: PreTrainedModel, family: Family, shape: Shape) -> None:
        self.model, self.family, self.shape = model, family, shape
        self.sums = Sums()
        self.reading = Reading(torch.empty(0))

    def read(self, reading: Reading) -> None:
        """Have the model read texts."""
        self.reading = reading
        read_text(self.model, reading.ids_BT)

    def add(self, name: Hashable, value: Tensor) -> None:
        """Add to a sum, on the device where all are."""
        self.sums.add(name, value.to(self.model.device))

    def is_first(self, name: Hashable) -> bool:
        """Whether this is the first time that these texts come here."""
        seen = self.reading.seen
        return name not in seen and not seen.add(name)

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Within, everything is summed up that the scores of the family are made of."""
        family, layers = self.family, self.shape.layers
        final_norm = family.outside["final_norm"].name
        with ExitStack() as hooks:
            # The residual stream before every layer, and behind the last.
            stream = [*(f"{family.layer_prefix}{layer}" for layer in range(layers)), final_norm]
            for position, name in enumerate(stream):
                hooks.enter_context(self.before(name, ("stream", position), self.add_stream))
            if family.width:
                # The inputs of the linears behind neurons and heads, and what attention and feed-forward read.
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
        """A hook that looks at what a module reads."""

        def hook(_: nn.Module, args: tuple[Any, ...]) -> None:
            if self.is_first(place):
                add(*place, args[0])

        return removable(self.model.get_submodule(name).register_forward_pre_hook(hook))

    def behind(self, name: str, place: tuple[str, int]) -> Any:
        """A hook that looks at what a norm gives."""

        def hook(_module: nn.Module, _args: tuple[Any, ...], y_BTH: Tensor) -> None:
            if self.is_first(place):
                self.add_read(*place, y_BTH)

        return removable(self.model.get_submodule(name).register_forward_hook(hook))

    def add_stream(self, _: str, position: int, stream_BTH: Tensor) -> None:
        """Sum up how far the stream has turned since the position before."""
        if position == 0:
            self.add(("tokens", 0), torch.tensor(stream_BTH.shape[0] * stream_BTH.shape[1]))
        else:
            assert self.reading.before is not None  # the position before was read
            before_BTH = self.reading.before.to(stream_BTH.device).double()
            turn_BT = 1 - F.cosine_similarity(before_BTH, stream_BTH.double(), dim=-1)
            self.add(("influence", position - 1), turn_BT.sum())
        self.reading.before = stream_BTH.clone() if position < self.shape.layers else None

    def add_input(self, role: str, layer: int, read_BTX: Tensor) -> None:
        """Sum up what a linear layer reads, whose inputs are neurons or the channels of heads."""
        x_BTX = read_BTX.double()
        self.add(("input", role, layer), x_BTX.sum(dim=(0, 1)))
        self.add(("squares", role, layer), x_BTX.square().sum(dim=(0, 1)))
        is_heads = role == "attention_output"
        sizes = x_BTX.unflatten(-1, (self.shape.heads, -1)).norm(dim=-1) if is_heads else x_BTX.abs()
        self.add(("activation", role, layer), sizes.mean(dim=1).square().sum(dim=0))

    def add_read(self, role: str, layer: int, x_BTH: Tensor) -> None:
        """Sum up what attention or feed-forward reads of the stream."""
        self.add(("read", role, layer), x_BTH.double().abs().mean(dim=1).square().sum(dim=0))


ReadTogether = Callable[[Watch, Sequence[Reading]], Iterator[None]]


@dataclass(frozen=True)
class Access:
    """How texts are read and weights are had of a model that is not whole on one device.

    Attributes:
        weight_of: Gives its weights.
        read_together: Has it read texts, each of which may be begun several times, and gives as many times nothing;
            None where they are read one after the other.
    """

    weight_of: WeightOf
    read_together: ReadTogether | None = None


def watching_bytes(shape: Shape) -> int:
    """The most that one token takes while its activations are summed up; of the stream two positions are there."""
    return FLOAT64_BYTES * COPIES * max(shape.intermediate, shape.axis("query"), 2 * shape.hidden)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout off inside the block; every module's mode as before behind it."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def removable(handle: Any) -> Iterator[None]:
    """A hook that is gone behind the block."""
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
    """The scores of `architectures.pruning.plan`, but for the two orders of layers.

    Families whose layers alone can be cut have block_influence_L alone. How a model with an encoder reads text without
    prompts: architectures.vocabulary_head.

    Sources: block_influence_L: Men et al. 2024, "ShortGPT", sec. 3 (arXiv 2403.03853). activation.*: Muralidharan et
    al. 2024, "Compact Language Models via Pruning and Knowledge Distillation" (Minitron), sec. 2.2 (arXiv 2407.14679),
    with its best aggregation: mean over the sequence, L2 over the sequences. flap.*: An et al. 2024, "FLAP", sec. 3
    (arXiv 2312.11983): variance of an input times the squared norm of its weights, not standardised, as every layer
    keeps the same number. magnitude.*: L2 norm of the weights of a part.

    Args:
        model: Of a known family, with its head; left as it was.
        ids_ST: Calibration text.
        batch_size: Sequences at once. No score depends on it.
        access: To the model; None of one that is whole on one device.

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
    """The values as numpy has them, if each is a number.

    Raises:
        UserError: If one is not.
    """
    if not values.isfinite().all():
        raise UserError(
            f"{name}: not every score is finite, as activations or weights of the target overflow in {dtype}. "
            "Set target.dtype to bfloat16 or float32, or fetch the checkpoint again."
        )
    return values.cpu().numpy()


def minitron_scores(sums: Sums, shape: Shape) -> dict[str, Tensor]:
    """The root of the sums over sequences; a channel's are added up over all that reads it."""
    neurons = [sums["activation", "ffn_down", layer] for layer in range(shape.layers)]
    heads = [sums["activation", "attention_output", layer] for layer in range(shape.layers)]
    read = [sums[name] for name in sums if isinstance(name, tuple) and name[0] == "read"]
    return {
        "activation.neurons_LF": torch.stack(neurons).sqrt(),
        "activation.heads_LN": torch.stack(heads).sqrt(),
        "activation.channels_H": torch.stack(read).sqrt().sum(dim=0),
    }


def flap_scores(weight_of: WeightOf, family: Family, shape: Shape, sums: Sums, *, num_tokens: int) -> dict[str, Tensor]:
    """Variance over all tokens of an input, times the sum of squares of the weights it meets; a head's are added up."""

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
    """The root of the sum of squares of all weights of matrices that a part touches.

    A head touches its rows of the query, those of the key and value it shares with its group, and its columns of the
    output. A tied embedding counts once.
    """

    def squares_of(parts: Mapping[str, Part], prefix: str = "") -> Sums:
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


def axis_squares(matrices: Iterable[tuple[Part, Tensor]], shape: Shape) -> Sums:
    """For each axis that families name, the sum of squares at each of its indices, over all matrices that have it."""
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


REMEDY = "Give a UTF-8 text file as architecture.calibration.text."
MAX_PARAGRAPH_CHARS = 100_000  # a file without blank lines is handed over in pieces, never read as a whole
SEQUENCE_LEN = 256


def calibration_sequences(
    texts: Iterable[str], tokenizer: Any, *, tokens: int, context_tokens: int | None = None
) -> Tensor:
    """ids_ST: the texts one after the other, in sequences of 256 tokens; few tokens in four shorter ones.

    Between two texts stands the end-of-sequence token, where the tokenizer has one. No text is read that is not needed.

    Args:
        texts: Plain texts; empty ones are passed over.
        tokenizer: Of the target.
        tokens: At most this number is used, >= 4.
        context_tokens: That the model was made for; no sequence is longer. None where there is no end.

    Raises:
        UserError: If the texts are too short.
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
    """The paragraphs of a plain text file, which blank lines part.

    Raises:
        UserError: When the first one is asked for, if the file cannot be read or holds none.
    """
    has_text = False
    try:
        require_regular(file, remedy=REMEDY)
        with file.open(encoding="utf-8") as stream:
            for paragraph in paragraphs(iter(partial(stream.readline, MAX_PARAGRAPH_CHARS), "")):
                has_text = True
                yield paragraph
    except OSError as error:
        raise UserError(unreadable(file, error, REMEDY)) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: cannot be read as text ({error}). {REMEDY}") from error
    if not has_text:
        raise UserError(f"{file}: holds no text. Give another file as architecture.calibration.text.")


def paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Neighbouring lines that are not blank, joined; long ones in pieces."""
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
