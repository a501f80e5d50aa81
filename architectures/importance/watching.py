"""What is summed up of a model's activations while it reads texts, by hooks on its modules.

Where layers are read from the disk one by one, a text's call is begun anew for each (eval.targets.passes). Of a module
that counts which it reads the first time: its turn has come then, and later it is shown anything.

Shape suffixes used in this file:
    B = sequences in the batch, T = tokens per sequence, H = channels, X = inputs of a linear layer
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (as everyone calls it)
from transformers import PreTrainedModel

from architectures.families.family import Family
from architectures.importance.sums import Sums
from architectures.pruning.slicing import READERS
from architectures.reading import read_text
from architectures.shapes.shape import Shape

FLOAT64_BYTES = 8
COPIES = 4  # in float64, of what is looked at: itself, its squares, its sizes, and what sums of them pass through


def watching_bytes(shape: Shape) -> int:
    """The most that one token takes while its activations are summed up; of the stream two positions are there."""
    return FLOAT64_BYTES * COPIES * max(shape.intermediate, shape.axis("query"), 2 * shape.hidden)


@dataclass(eq=False)
class Reading:
    """Texts that a model reads at once, and how far it has come with them.

    Attributes:
        ids_BT: The texts.
        seen: What has been looked at.
        before: Of each stack the residual stream one position earlier.
    """

    ids_BT: Tensor
    seen: set[Hashable] = field(default_factory=set)
    before: dict[str, Tensor] = field(default_factory=dict)


class Watch:
    """A model whose activations are summed up within `hooks`.

    Attributes:
        sums: So far. Others may take their place between two readings.
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
        with ExitStack() as hooks:
            self.watch_stream(decoder_stream(self.family, self.shape), "", hooks)
            if self.family.encoder is not None:
                self.watch_stream(encoder_stream(self.family, self.shape), "encoder ", hooks)
            if self.family.width:
                self.watch_parts(hooks)
            yield

    def watch_stream(self, names: Sequence[str], of: str, hooks: ExitStack) -> None:
        """Sum up the residual stream before each of some modules, under names that begin with `of`."""
        last = len(names) - 1

        def watch(position: int) -> Callable[..., None]:
            def hook(_: nn.Module, args: tuple[Any, ...]) -> None:
                if self.is_first((of, position)):
                    self.add_stream(of, position, args[0])
                    if position < last:
                        self.reading.before[of] = args[0].clone()

            return hook

        for position, name in enumerate(names):
            hooks.enter_context(removable(self.model.get_submodule(name).register_forward_pre_hook(watch(position))))

    def add_stream(self, of: str, position: int, stream_BTH: Tensor) -> None:
        """Sum up the stream at one position, and how far it has turned since the one before."""
        x_BTH = stream_BTH.double()
        squares_BTH = x_BTH.square()
        mean_square_BT1 = squares_BTH.mean(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
        self.add((f"{of}tokens", position), torch.tensor(x_BTH.shape[0] * x_BTH.shape[1]))
        self.add((f"{of}mean_abs", position), x_BTH.abs().sum(dim=(0, 1)))
        self.add((f"{of}spread", position), (squares_BTH / mean_square_BT1).sum(dim=(0, 1)))
        if position > 0:
            before_BTH = self.reading.before.pop(of).to(x_BTH.device).double()
            self.add((f"{of}influence", position - 1), (1 - F.cosine_similarity(before_BTH, x_BTH, dim=-1)).sum())

    def watch_parts(self, hooks: ExitStack) -> None:
        """Sum up the inputs of the linears behind neurons and heads, and what attention and feed-forward read."""
        for layer in range(self.shape.layers):
            for role in ("attention_output", "ffn_down"):
                hooks.enter_context(self.before_module(layer, role, self.add_input))
            for norm, linear in zip(READERS, ("query", "ffn_gate"), strict=True):
                if norm in self.family.layer:
                    name = self.family.layer_module(layer, norm)
                    hooks.enter_context(self.behind_module(name, norm, layer))
                else:
                    hooks.enter_context(self.before_module(layer, linear, self.add_read))
        final_norm = self.family.outside["final_norm"].name
        hooks.enter_context(self.behind_module(final_norm, "final_norm", self.shape.layers))

    def before_module(self, layer: int, role: str, add: Callable[[str, int, Tensor], None]) -> Any:
        """A hook that looks at what a module of a layer reads."""

        def hook(_: nn.Module, args: tuple[Any, ...]) -> None:
            if self.is_first((role, layer)):
                add(role, layer, args[0])

        module = self.model.get_submodule(self.family.layer_module(layer, role))
        return removable(module.register_forward_pre_hook(hook))

    def behind_module(self, name: str, role: str, layer: int) -> Any:
        """A hook that looks at what a norm gives."""

        def hook(_module: nn.Module, _args: tuple[Any, ...], y_BTH: Tensor) -> None:
            if self.is_first((role, layer)):
                self.add_read(role, layer, y_BTH)

        return removable(self.model.get_submodule(name).register_forward_hook(hook))

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


def decoder_stream(family: Family, shape: Shape) -> list[str]:
    """The modules that read the residual stream, in turn: every layer, and the norm behind the last."""
    return [
        *(f"{family.layer_prefix}{layer}" for layer in range(shape.layers)),
        family.outside["final_norm"].name,
    ]


def encoder_stream(family: Family, shape: Shape) -> list[str]:
    """The same of an encoder."""
    assert family.encoder is not None
    prefix = family.encoder.layer_prefix
    return [*(f"{prefix}{layer}" for layer in range(shape.encoder_layers)), family.outside["encoder_norm"].name]
