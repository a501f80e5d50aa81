"""A target whose layers are on the disk: each gets its weights when it runs, and gives them back.

It is the model that transformers makes, without its weights. Norms and positions are there; of the embedding the rows
of the ids that are asked for are read, and a layer and the output head are read whole each time they run. Decoding so
reads all weights at every step. Many texts are read together, layer after layer: eval/targets/passes.py.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from architectures.checkpoints.weights import Weights
from eval.models.loading import refuse_not_finite_tensor
from eval.targets.layer_memory import LayerMemory

HEAD = -1  # the number of the output head, which no text is paused at


@dataclass(eq=False)
class DiskPart:
    """A module whose weights are on the disk.

    Attributes:
        module: Of the model.
        names: Parameter of the module -> tensor of the checkpoint.
        stack: Which stack of layers it is of: 0, or 1 of the decoder behind an encoder.
        number: Its turn among the layers of all stacks; HEAD of the output head.
        forward: What it computes once its weights are there.
    """

    module: nn.Module
    names: Mapping[str, str]
    stack: int
    number: int
    forward: Callable[..., Any]


class PausedError(Exception):
    """A layer has run whose turn it was."""


@dataclass(eq=False)
class Layers:
    """The parts of a model that are on the disk.

    Attributes:
        weights: The checkpoint.
        parts: The layers, in the order in which they run.
        memory: What they take.
        cap: What may be taken, and where that number is from.
        kept: While texts are read together, what the last layer of each stack gave; None where each call runs through.
        turn: Then the layer to run, or HEAD: those before it give what is kept, and the call is left behind it.
        embedded: Then the stacks whose embeddings were asked for in this call.
        absent: What stands in the place of the weights, of the parts that have theirs.
        keeps_head: Whether the output head is to keep its weights.
    """

    weights: Weights
    dtype: torch.dtype
    device: torch.device
    memory: LayerMemory
    cap: tuple[int, str]
    parts: list[DiskPart] = field(default_factory=list)
    kept: dict[int, Any] | None = None
    turn: int = HEAD
    embedded: int = 0
    absent: dict[DiskPart, dict[str, Tensor]] = field(default_factory=dict)
    keeps_head: bool = False

    def run(self, part: DiskPart, *args: Any, **kwargs: Any) -> Any:
        """What a module gives, which is called in its place."""

        def compute() -> Any:
            with self.loading(part):
                return part.forward(*args, **kwargs)

        if self.kept is None or part.number == HEAD:
            return compute()
        if part.number == self.turn:
            self.kept[part.stack] = compute()
            raise PausedError
        return self.kept[part.stack]

    def embed(self, module: nn.Embedding, name: str, forward: Callable[[Tensor], Tensor], ids: Tensor) -> Tensor:
        """What an embedding gives, of which the rows are read that these ids name."""

        def compute() -> Tensor:
            unique, places = ids.unique(return_inverse=True)
            with torch.inference_mode(mode=False):
                rows = self.placed(name, self.weights.read_rows(name, unique.tolist()))
            absent, module.weight.data = module.weight.data, rows
            try:
                return forward(places)
            finally:
                module.weight.data = absent

        stack, self.embedded = self.embedded, self.embedded + 1
        if self.kept is None or stack not in self.kept:
            return compute()
        given = self.kept[stack]  # anything of its size, once the stack's first layer has run
        return given[0] if isinstance(given, tuple) else given

    @contextmanager
    def interrupted(self, turn: int, kept: dict[int, Any]) -> Iterator[None]:
        """Within, a call runs no layer but the one whose turn it is, and ends behind it."""
        self.turn, self.kept, self.embedded = turn, kept, 0
        try:
            yield
        finally:
            self.kept = None

    @contextmanager
    def loading(self, part: DiskPart) -> Iterator[None]:
        """Within, a part has its weights; they go again unless they were there before."""
        is_new = part not in self.absent
        try:
            if is_new:
                self.load(part)
            yield
        finally:
            if is_new and not (part.number == HEAD and self.keeps_head):
                self.unload(part)

    @contextmanager
    def head_stays(self) -> Iterator[None]:
        """Within, the output head keeps its weights from when it first runs."""
        self.keeps_head = True
        try:
            yield
        finally:
            self.keeps_head = False
            for part in [part for part in self.absent if part.number == HEAD]:
                self.unload(part)

    def load(self, part: DiskPart) -> None:
        """Read the weights of a part."""
        self.absent[part] = {name: parameter.data for name, parameter in part.module.named_parameters()}
        with torch.inference_mode(mode=False):
            for name, parameter in part.module.named_parameters():
                stored = part.names[name]
                parameter.data = self.placed(stored, self.weights.read(stored))

    def unload(self, part: DiskPart) -> None:
        """Let go of them."""
        absent = self.absent.pop(part)
        for name, parameter in part.module.named_parameters():
            parameter.data = absent[name]

    def placed(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor as the model computes with it.

        Raises:
            UserError: If it holds what is no number.
        """
        placed = tensor.to(self.dtype).to(self.device)
        refuse_not_finite_tensor(str(self.weights.files[name]), name, placed)
        return placed


LAYERS_OF: WeakKeyDictionary[PreTrainedModel, Layers] = WeakKeyDictionary()


def layers_of(model: PreTrainedModel) -> Layers | None:
    """What of a model is on the disk; None of one that is not so held."""
    return LAYERS_OF.get(model)


def held_otherwise(model: PreTrainedModel) -> str | None:
    """How a model's weights are held, in words, where they are not all plainly on one device; else None."""
    if layers_of(model) is not None:
        return "layers are read from the disk each time they run"
    if len(set(getattr(model, "hf_device_map", {}).values())) > 1:
        return "layers are brought from device to device by hooks"
    return "weights are packed" if getattr(model, "is_quantized", False) else None
