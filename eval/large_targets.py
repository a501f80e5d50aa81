"""Targets larger than a device: spread over devices by accelerate, or read layer by layer from the disk.

A target read from the disk is the model that transformers makes, without its weights. Norms and positions are there; of
the embedding the rows of the ids that are asked for are read, and a layer and the output head are read whole each time
they run. Decoding so reads all weights at every step. Many texts are therefore read together, layer after layer.

Every pass is the model's own call, interrupted: it runs up to the layer whose turn it is, what that layer gives is
kept, and the call is left. At the next layer's turn the call begins again, and layers that had theirs give what was
kept of the last one, which is all that a layer hands on. So nothing here knows how a family makes its masks, positions
or biases, and what comes out is what an uninterrupted call gives, bit for bit where the same kernels run.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, finalize

import psutil
import torch
from accelerate import init_empty_weights
from accelerate.utils import get_max_memory
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import GenerationConfig, PreTrainedModel

from architectures.checkpoint import Weights, open_weights, require_tensors
from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.families.family import Family
from architectures.files import size
from architectures.hub import read_config, require_whole_head
from architectures.importance.activation_scores import Access, Reading, Watch, watching_bytes
from architectures.progress import LINE_INTERVAL_S
from architectures.settings import WHOLE, Holding
from architectures.shapes import Shape, checkpoint_tensors
from eval.layer_memory import KEY, LayerMemory, asked_bytes, layer_memory, refuse_small_cap
from eval.models import (
    default_device,
    give_back_from_now_on,
    load_config,
    load_model,
    model_class,
    quick_forward,
    refuse_not_finite_tensor,
    slow_type,
)

CGROUP = Path("/sys/fs/cgroup")
SHARE_OF_FREE = 0.8  # the rest is for what else a process does: drafts, logits, and what its allocator cannot use


def cap_bytes(holding: Holding, device: torch.device) -> tuple[int, str]:
    """What the target may take on a device, and where that number is from."""
    if (asked := asked_bytes(holding)) is not None:
        return asked
    free = free_bytes(device)
    return int(SHARE_OF_FREE * free), f"{size(free).strip()} can be taken here, {SHARE_OF_FREE:.0%} of it by the target"


def free_bytes(device: torch.device) -> int:
    """Memory that this process can still take on a device.

    On a processor the others of a launch take as much as this one, at the same time.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by torch itself
        return torch.cuda.mem_get_info(device)[0] + unused
    of_all = min(psutil.virtual_memory().available, left_by_cgroup())
    return of_all // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def left_by_cgroup() -> int:
    """What the control group of a container leaves; pages of files that it can give back are not counted as used."""
    most, used, told = (CGROUP / f"memory.{name}" for name in ("max", "current", "stat"))
    if not (most.is_file() and used.is_file() and told.is_file()) or most.read_text().strip() == "max":
        return torch.iinfo(torch.int64).max
    counts = dict(line.split() for line in told.read_text().splitlines())
    return int(most.read_text()) - int(used.read_text()) + int(counts.get("inactive_file", 0))


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


Result = TypeVar("Result")


@dataclass(frozen=True)
class Pass(Generic[Result]):
    """One call of a model.

    Attributes:
        run: The call; it may be made several times, and gives the same each time.
        rows: Of texts that it reads.
        width: Tokens of the longest.
        work_bytes: That the call takes while a layer runs, beside what the layer does.
        kept_bytes: That it keeps between two layers, beside its hidden states.
    """

    run: Callable[[], Result]
    rows: int
    width: int
    work_bytes: int = 0
    kept_bytes: int = 0


def run_passes(model: PreTrainedModel, passes: Sequence[Pass[Result]]) -> Iterator[Result]:
    """What each pass gives, in their order.

    Raises:
        UserError: If a target on the disk has too little memory for one of them.
    """
    layers = layers_of(model)
    if layers is None:
        yield from (each.run() for each in passes)
        return
    blocks = cut_into_blocks(model, layers, passes)
    for number, block in enumerate(blocks, start=1):
        yield from run_block(layers, block, words=f"block {number} of {len(blocks)}")


def cut_into_blocks(model: PreTrainedModel, layers: Layers, passes: Sequence[Pass[Result]]) -> list[list[Pass[Result]]]:
    """The passes in blocks, each as large as what its texts keep between two layers leaves memory for."""
    memory, (allowed, _) = layers.memory, layers.cap
    for each in passes:
        beside = each.work_bytes + each.kept_bytes
        refuse_small_cap(
            str(model.name_or_path), memory, layers.cap, rows=each.rows, width=each.width, beside_bytes=beside
        )
    blocks: list[list[Pass[Result]]] = []
    held, largest = 0, 0
    for each in passes:
        own = memory.held_bytes(each.rows, each.width) + each.kept_bytes
        work = memory.pass_bytes(each.rows, each.width) + each.work_bytes
        held, largest = held + own, max(largest, work)
        if not blocks or memory.kept_bytes + memory.largest_bytes + held + largest > allowed:
            blocks.append([])
            held, largest = own, work
        blocks[-1].append(each)
    return blocks


def run_block(layers: Layers, block: Sequence[Pass[Result]], *, words: str) -> Iterator[Result]:
    """Some passes through one layer after another; what they give comes when all layers have run."""
    kept: list[dict[int, Any]] = [{} for _ in block]
    reported_s = time.monotonic()
    for part in layers.parts:
        with layers.loading(part):
            for each, so_far in zip(block, kept, strict=True):
                with layers.interrupted(part.number, so_far), suppress(PausedError):
                    each.run()
        if time.monotonic() - reported_s >= LINE_INTERVAL_S:
            reported_s = time.monotonic()
            done, read = f"layer {part.number + 1} of {len(layers.parts)}", size(layers.memory.weight_bytes).strip()
            print(f"{words}: {done}, {read} of weights are read for it", file=sys.stderr, flush=True)
    with layers.head_stays():
        for each in block:
            with layers.interrupted(HEAD, kept.pop(0)):
                result = each.run()
            yield result


def access_to(model: PreTrainedModel, folder: Path) -> Access | None:
    """How texts are read and weights are had of a target; None of one that is whole.

    Args:
        model: From eval.large_targets.load_target; its weights are not packed.
        folder: It was loaded from.
    """
    if held_otherwise(model) is None:
        return None
    family = FAMILIES[model.config.model_type]
    weights = open_weights(folder, base_prefix=family.base_prefix)
    weight_of = partial(stored, weights, family, model.dtype, model.device)
    return Access(weight_of, None if layers_of(model) is None else read_in_layers)


def stored(weights: Weights, family: Family, dtype: torch.dtype, device: torch.device, name: str) -> Tensor:
    """A parameter as the model would compute with it, from the disk."""
    module, _, kind = name.rpartition(".")
    tensor = weights.read(f"{family.renamed_modules.get(module, module)}.{kind}")
    return tensor.to(dtype).to(device)


def read_in_layers(watch: Watch, readings: Sequence[Reading]) -> Iterator[None]:
    """Have all texts read by one layer, then by the next."""
    item, beside = watch.model.dtype.itemsize, watching_bytes(watch.shape)
    passes = [
        Pass(
            partial(watch.read, reading),
            *reading.ids_BT.shape,
            work_bytes=reading.ids_BT.numel() * beside,
            kept_bytes=reading.ids_BT.numel() * watch.shape.hidden * item,
        )
        for reading in readings
    ]
    return run_passes(watch.model, passes)


def load_layered(folder: Path, *, dtype: str, device: str, holding: Holding) -> PreTrainedModel:
    """The model of a checkpoint folder, its layers on the disk.

    Raises:
        UserError: If its family is unknown, a tensor is missing, or not even one layer fits into the memory.
    """
    config = read_config(folder)
    shape = Shape.from_config(config, where=str(folder / "config.json"))
    family, placed = FAMILIES[shape.family], torch.device(device)
    require_whole_head(folder)
    weights = open_weights(folder, base_prefix=family.base_prefix)
    require_whole(weights, shape, family)
    memory, cap = layer_memory(shape, dtype, keeps_scores=placed.type == "cpu"), cap_bytes(holding, placed)
    refuse_small_cap(folder, memory, cap)
    if placed.type == "cpu":
        give_back_from_now_on()
    model = without_weights(folder, dtype=dtype)
    refuse_mixed_types(folder, model, dtype)
    layers = Layers(weights, getattr(torch, dtype), placed, memory, cap)
    fill(model, layers, shape, family)
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    LAYERS_OF[model] = layers
    return model.eval()


def require_whole(weights: Weights, shape: Shape, family: Family) -> None:
    """The checkpoint holds what its config promises, and perhaps its embedding under further names."""
    names = (*([family.weight("head")] if shape.tied else []), *family.stored_copies)
    copies = dict.fromkeys((name for name in names if name in weights.info), (shape.vocab, shape.hidden))
    require_tensors(weights, checkpoint_tensors(shape) | copies, ignored=family.ignored_suffixes)


def refuse_mixed_types(folder: Path, model: PreTrainedModel, dtype: str) -> None:
    """Raise UserError where transformers would keep some weights in another number type than the one asked for."""
    kept = getattr(model, "_keep_in_fp32_modules", None)
    if kept and dtype == "float16":
        raise UserError(
            f"{folder}: in float16 transformers keeps {', '.join(sorted(kept))} in float32, and layers that are read "
            "from the disk have one number type. Set bfloat16 or float32."
        )


class EmptyWithoutStorage(TorchFunctionMode):
    """Uninitialised tensors, as modules make their weights of, get no memory: not even until a weight is registered.

    accelerate gives it back then, but what is freed in small pieces is not always used again.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        told = dict(kwargs or {})
        if func is torch.empty:
            told["device"] = "meta"
        return func(*args, **told)


def without_weights(folder: Path, *, dtype: str) -> PreTrainedModel:
    """The model of a folder, its parameters without storage; buffers, which no checkpoint holds, are there."""
    config, opens = load_config(folder), model_class(folder, encoder_decoder=False)
    with init_empty_weights(include_buffers=False), EmptyWithoutStorage():
        lm = opens.from_config(config, dtype=getattr(torch, dtype), trust_remote_code=False)
    lm.tie_weights()
    return lm


def fill(model: PreTrainedModel, layers: Layers, shape: Shape, family: Family) -> None:
    """Give a model what stays in memory, and of the rest what reads it when it is asked for."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    assert isinstance(head, nn.Linear)
    assert isinstance(embedding, nn.Embedding)
    quicken(model, layers.dtype, layers.device)
    if not shape.tied:  # transformers ties what some configs only seem to say
        head.weight = nn.Parameter(torch.empty_like(embedding.weight), requires_grad=False)
    words = family.weight("embedding")
    rows = [each for each in model.modules() if isinstance(each, nn.Embedding) and each.weight is embedding.weight]
    on_disk = {id(embedding.weight), id(head.weight)}
    for stack, prefix in enumerate(prefixes(family)):
        stacked = model.get_submodule(prefix.removesuffix("."))
        assert isinstance(stacked, nn.ModuleList)
        for index, module in enumerate(stacked):
            on_disk |= {id(parameter) for parameter in module.parameters()}
            names = {name: f"{prefix}{index}.{name}" for name, _ in module.named_parameters()}
            layers.parts.append(replaced(module, names, layers, stack=stack, number=len(layers.parts)))
    settle(model, layers, family, on_disk)
    for each in rows:
        each.padding_idx = None  # rows are numbered anew at every call
        each.forward = partial(layers.embed, each, words, each.forward)  # pyright: ignore[reportAttributeAccessIssue]
    stored = words if shape.tied else family.weight("head")
    replaced(head, {"weight": stored}, layers, stack=len(prefixes(family)) - 1, number=HEAD)


def quicken(model: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    """Have linear layers multiply as those of a whole model do here, without the second copy that few rows are for."""
    if device.type != "cpu" or slow_type() != dtype:
        return
    for each in model.modules():
        if type(each) is nn.Linear:
            each.forward = partial(quick_forward, each, None)  # pyright: ignore[reportAttributeAccessIssue]


def prefixes(family: Family) -> list[str]:
    """Of the names of layers, in the order of the stacks."""
    return [*([family.encoder.layer_prefix] if family.encoder else []), family.layer_prefix]


def replaced(module: nn.Module, names: Mapping[str, str], layers: Layers, *, stack: int, number: int) -> DiskPart:
    """A module that asks the disk for its weights from now on."""
    part = DiskPart(module, names, stack, number, module.forward)
    module.forward = partial(layers.run, part)  # pyright: ignore[reportAttributeAccessIssue]
    return part


def settle(model: PreTrainedModel, layers: Layers, family: Family, on_disk: set[int]) -> None:
    """Read what stays; parameters on the disk keep size, type and device, and are NaN to whoever looks at them."""
    absent = torch.full((), torch.nan, dtype=layers.dtype, device=layers.device)
    with torch.no_grad():
        for name, parameter in list(model.named_parameters()):
            module, _, kind = name.rpartition(".")
            held = model.get_submodule(module)
            if id(parameter) in on_disk:
                value = absent.expand(parameter.shape)
            else:
                full = f"{family.renamed_modules.get(module, module)}.{kind}"
                value = layers.placed(full, layers.weights.read(full))
            give(model, held, kind, parameter, value)
        for buffer_name, buffer in list(model.named_buffers()):
            module, _, kind = buffer_name.rpartition(".")
            model.get_submodule(module)._buffers[kind] = buffer.to(layers.device)  # noqa: SLF001


def give(model: nn.Module, held: nn.Module, kind: str, parameter: nn.Parameter, value: Tensor) -> None:
    """Put a value in the place of a parameter, wherever it is tied to."""
    given = nn.Parameter(value, requires_grad=False)
    held.register_parameter(kind, given)
    for module in model.modules():
        for name, other in module.named_parameters(recurse=False):
            if other is parameter:
                module.register_parameter(name, given)


def held_facts(holding: Holding) -> dict[str, Any]:
    """What a scorecard says of how its target was held; nothing of one that is whole, as it is."""
    placed = {} if holding.placement == "whole" else {"placement": holding.placement}
    return placed | holding.claimed


def load_target(
    folder: Path, *, dtype: str, holding: Holding = WHOLE, device: str | None = None, encoder_decoder: bool = False
) -> PreTrainedModel:
    """The model of a target's folder, in eval mode.

    Args:
        folder: A local Hugging Face folder.
        dtype: A floating torch dtype by name: "float32", "bfloat16" or "float16".
        holding: Where its weights are.
        device: A torch device; None takes "cuda" where there is one, else "cpu".
        encoder_decoder: Of one that is whole: whether it may be an encoder-decoder model of any family.

    Raises:
        UserError: As eval.models.load_model; or if the memory that it may take is too little.
    """
    if holding.placement == "layers":
        return load_layered(folder, dtype=dtype, device=device or default_device(), holding=holding)
    if holding.placement == "spread":
        return load_spread(folder, dtype=dtype, holding=holding)
    return load_model(folder, dtype=dtype, device=device, bits=holding.bits, encoder_decoder=encoder_decoder)


def load_spread(folder: Path, *, dtype: str, holding: Holding) -> PreTrainedModel:
    """The model of a checkpoint folder over the GPUs of the machine, its memory and its disk, by its device_map.

    Layers run where they are; those in memory or on the disk are brought to a GPU, or to the CPU, each time they run.

    Raises:
        UserError: If there are several processes, its family is unknown, or a cap is smaller than a layer.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1:
        raise UserError(
            f"target.placement is spread, and there are {processes} processes: each would take all of the machine's "
            "devices. Start one process, or set target.placement to layers, of which each process has its own."
        )

    # The device that computes may take what the recipe says, and must hold the largest layer whole.
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    computing: list[int | str] = [*range(num_gpus)] if num_gpus else ["cpu"]
    memory: dict[Any, int] = dict(get_max_memory())
    if holding.device_memory_gib is not None:
        memory |= dict.fromkeys(computing, int(holding.device_memory_gib * 2**30))
    shape = Shape.from_config(read_config(folder), where=str(folder / "config.json"))
    needed, allowed = layer_memory(shape, dtype), min(memory[name] for name in computing)
    if needed.largest_bytes > allowed:
        raise UserError(
            f"{folder}: {needed.largest} has {size(needed.largest_bytes).strip()} in {dtype}, and must lie whole where "
            f"it is computed, which may take {size(allowed).strip()}. Raise {KEY}, or take a machine with more memory."
        )

    # Every tensor is read once: those on the disk are not looked at when the model is loaded.
    weights = open_weights(folder)
    for name in weights.info:
        tensor = weights.read(name).to(getattr(torch, dtype))
        refuse_not_finite_tensor(str(weights.files[name]), name, tensor)

    offload = TemporaryDirectory(prefix="widedraft-offload-")  # for tensors that are stored in another dtype
    placing = {"device_map": "auto", "max_memory": memory, "offload_folder": offload.name}
    model = load_model(folder, dtype=dtype, placing=placing)
    finalize(model, offload.cleanup)
    if model.device.type == "meta":
        raise UserError(
            f"{folder}: its embedding would be on the disk, as a device may take {size(allowed).strip()}. Raise {KEY}, "
            "or set target.placement to layers."
        )
    return model
