"""Targets larger than a device: spread over devices by accelerate, or read layer by layer from disk.

A target on disk is the transformers model without its weights. Norms and positions stay in memory; of the embedding
only the rows of the requested ids are read; a layer or the output head is read whole each time it runs. Decoding thus
reads all weights at every step, so many sequences are processed together, layer after layer.

Every pass is the model's own forward call, interrupted: it runs up to the current layer, whose output is stored, and
the call is left. For the next layer the call starts again, and layers that have run return the stored output of the
last one, which is all that a layer hands on. So this file does not depend on how a family makes its masks, positions
or biases, and results equal an uninterrupted call, bit for bit if the same kernels run.
"""

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from math import prod
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

from architectures.checkpoint import Weights, open_weights, read_parameter
from architectures.console import LINE_INTERVAL_S
from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.families.family import Family, StoredNames
from architectures.files import format_bytes
from architectures.hub import read_config, require_whole_head
from architectures.pruning.importance import Access, Reading, Watch, watching_bytes
from architectures.pruning.prune import require_whole
from architectures.settings import WHOLE, Holding
from architectures.shapes import DTYPE_BYTES, Shape
from eval.layer_memory import KEY, LayerMemory, layer_memory, reject_small_cap, requested_bytes
from eval.models import (
    default_device,
    give_back_from_now_on,
    keep_freed_memory,
    load_config,
    load_model,
    model_class,
    quick_forward,
    reject_not_finite_tensor,
    slow_type,
)

CGROUP = Path("/sys/fs/cgroup")
SHARE_OF_FREE = 0.8  # the rest is for drafts, logits, and allocator overhead


def cap_bytes(holding: Holding, device: torch.device) -> tuple[int, str]:
    """Return the memory that the target may take on a device, and where that number comes from."""
    if (requested := requested_bytes(holding)) is not None:
        return requested
    free = free_bytes(device)
    return int(SHARE_OF_FREE * free), f"{format_bytes(free)} is available, {SHARE_OF_FREE:.0%} of it for the target"


def free_bytes(device: torch.device) -> int:
    """Return the memory that this process can still allocate on a device.

    CPU memory is divided among the local ranks, which allocate the same at the same time.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # cached by torch
        return torch.cuda.mem_get_info(device)[0] + unused
    of_all = min(psutil.virtual_memory().available, left_by_cgroup())
    return of_all // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def left_by_cgroup() -> int:
    """Return the memory left in a container's cgroup; reclaimable file pages do not count as used."""
    most, used, told = (CGROUP / f"memory.{name}" for name in ("max", "current", "stat"))
    if not (most.is_file() and used.is_file() and told.is_file()) or most.read_text().strip() == "max":
        return torch.iinfo(torch.int64).max
    counts = dict(line.split() for line in told.read_text().splitlines())
    return int(most.read_text()) - int(used.read_text()) + int(counts.get("inactive_file", 0))


HEAD = -1  # number of the output head, at which no sequence is paused


@dataclass(eq=False)
class DiskPart:
    """A module whose weights are on disk.

    Attributes:
        names: Parameter of the module -> tensors of the checkpoint, as Family.stored_names.
        stack: Index of its stack of layers: 0, or 1 for the decoder behind an encoder.
        number: Position among the layers of all stacks; HEAD for the output head.
        forward: The original forward, once the weights are loaded.
    """

    module: nn.Module
    names: Mapping[str, StoredNames]
    stack: int
    number: int
    forward: Callable[..., Any]


class PausedError(Exception):
    """Raised to leave a forward call after the current layer has run."""


@dataclass(eq=False)
class Layers:
    """The parts of a model that are on disk.

    Attributes:
        parts: The layers, in the order in which they run.
        cap: Allowed memory, and where that number comes from.
        kept: While sequences are processed together, the output of the last layer of each stack; None otherwise.
        turn: Then the layer to run, or HEAD: layers before it return `kept`, and the call is left after it.
        embedded: Then the number of stacks embedded in this call.
        absent: Placeholders of the loaded parts' weights.
        keeps_head: Keep the output head's weights loaded.
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
        if self.kept is not None and part.number not in (HEAD, self.turn):
            return self.kept[part.stack]
        with self.loading(part):
            output = part.forward(*args, **kwargs)
        if self.kept is None or part.number == HEAD:
            return output
        self.kept[part.stack] = output
        raise PausedError

    def embed(self, module: nn.Embedding, name: str, forward: Callable[[Tensor], Tensor], ids: Tensor) -> Tensor:
        """Embed ids, reading only their rows."""
        stack, self.embedded = self.embedded, self.embedded + 1
        if self.kept is not None and stack in self.kept:
            given = self.kept[stack]  # any tensor of its size, once the stack's first layer has run
            return given[0] if isinstance(given, tuple) else given
        unique, places = ids.unique(return_inverse=True)
        with torch.inference_mode(mode=False):
            rows = self.placed(name, self.weights.read_rows(name, unique.tolist()))
        absent, module.weight.data = module.weight.data, rows
        try:
            return forward(places)
        finally:
            module.weight.data = absent

    @contextmanager
    def interrupted(self, turn: int, kept: dict[int, Any]) -> Iterator[None]:
        """Let calls in the block run only one layer and end after it."""
        self.turn, self.kept, self.embedded = turn, kept, 0
        try:
            yield
        finally:
            self.kept = None

    @contextmanager
    def loading(self, part: DiskPart) -> Iterator[None]:
        """Load a part for the block; unload it afterwards unless it was loaded before."""
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
        """Keep the output head's weights within the block once loaded."""
        self.keeps_head = True
        try:
            yield
        finally:
            self.keeps_head = False
            for part in [part for part in self.absent if part.number == HEAD]:
                self.unload(part)

    def load(self, part: DiskPart) -> None:
        self.absent[part] = {name: parameter.data for name, parameter in part.module.named_parameters()}
        with torch.inference_mode(mode=False):
            for name, parameter in part.module.named_parameters():
                parameter.data = read_parameter(part.names[name], self.read)

    def unload(self, part: DiskPart) -> None:
        absent = self.absent.pop(part)
        for name, parameter in part.module.named_parameters():
            parameter.data = absent[name]

    def read(self, name: str) -> Tensor:
        return self.placed(name, self.weights.read(name))

    def placed(self, name: str, tensor: Tensor) -> Tensor:
        """Move a tensor to the device in the model's dtype; UserError if it has a NaN or infinite entry."""
        placed = tensor.to(self.dtype).to(self.device)
        reject_not_finite_tensor(str(self.weights.files[name]), name, placed)
        return placed


LAYERS_OF: WeakKeyDictionary[PreTrainedModel, Layers] = WeakKeyDictionary()


def layers_of(model: PreTrainedModel) -> Layers | None:
    return LAYERS_OF.get(model)


def held_otherwise(model: PreTrainedModel) -> str | None:
    """Describe a placement other than plain weights on one device; None otherwise."""
    if layers_of(model) is not None:
        return "layers are read from disk each time they run"
    if len(set(getattr(model, "hf_device_map", {}).values())) > 1:
        return "hooks move layers between devices"
    return "weights are packed" if getattr(model, "is_quantized", False) else None


Result = TypeVar("Result")


@dataclass(frozen=True)
class Pass(Generic[Result]):
    """One call of a model.

    Attributes:
        run: The call; it may be made several times and must return the same each time.
        work_bytes: Memory the call takes while a layer runs, in addition to the layer's.
        kept_bytes: Memory kept between two layers, in addition to hidden states.
    """

    run: Callable[[], Result]
    rows: int
    width: int
    work_bytes: int = 0
    kept_bytes: int = 0


def run_passes(model: PreTrainedModel, passes: Sequence[Pass[Result]]) -> Iterator[Result]:
    """Yield the result of each pass, in order.

    Raises:
        UserError: If a target on disk has too little memory for one of them.
    """
    layers = layers_of(model)
    if layers is None:
        yield from (each.run() for each in passes)
        return
    blocks = cut_into_blocks(model, layers, passes)
    for number, block in enumerate(blocks, start=1):
        yield from run_block(layers, block, words=f"block {number} of {len(blocks)}")


def cut_into_blocks(model: PreTrainedModel, layers: Layers, passes: Sequence[Pass[Result]]) -> list[list[Pass[Result]]]:
    """Group passes into blocks that are as large as the memory for what they keep between two layers allows."""
    memory, (allowed, _) = layers.memory, layers.cap
    for each in passes:
        beside = each.work_bytes + each.kept_bytes
        reject_small_cap(
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
    """Run a block of passes layer by layer; results come after all layers have run."""
    kept: list[dict[int, Any]] = [{} for _ in block]
    reported_s = time.monotonic()
    for part in layers.parts:
        with layers.loading(part):
            for each, so_far in zip(block, kept, strict=True):
                with layers.interrupted(part.number, so_far), suppress(PausedError):
                    each.run()
        if time.monotonic() - reported_s >= LINE_INTERVAL_S:
            reported_s = time.monotonic()
            done, read = f"layer {part.number + 1} of {len(layers.parts)}", format_bytes(layers.memory.weight_bytes)
            print(f"{words}: {done}, reading {read} of weights", file=sys.stderr, flush=True)
    with layers.head_stays():
        for each in block:
            with layers.interrupted(HEAD, kept.pop(0)):
                result = each.run()
            yield result


def access_to(model: PreTrainedModel, folder: Path) -> Access | None:
    """Return how calibration reads sequences and weights of a target that is not whole; None if it is.

    Args:
        model: From eval.large_targets.load_target, not quantised.
        folder: Directory it was loaded from.
    """
    if held_otherwise(model) is None:
        return None
    family = FAMILIES[model.config.model_type]
    weights = open_weights(folder, base_prefix=family.base_prefix)

    def stored(name: str) -> Tensor:
        tensor = read_parameter(family.stored_names(name, len(model.get_parameter(name))), weights.read)
        return tensor.to(model.dtype).to(model.device)

    return Access(stored, None if layers_of(model) is None else read_in_layers)


def read_in_layers(watch: Watch, readings: Sequence[Reading]) -> Iterator[None]:
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
    """Load the model of a checkpoint directory with its layers on disk.

    Raises:
        UserError: If its family is unknown, a tensor is missing, or not even one layer fits into memory.
    """
    config = read_config(folder)
    shape = Shape.from_config(config, where=str(folder / "config.json"))
    family, placed = FAMILIES[shape.family], torch.device(device)
    require_whole_head(folder)
    weights = open_weights(folder, base_prefix=family.base_prefix)
    require_whole(weights, shape)

    # The model without weights, then the resident ones.
    memory, cap = layer_memory(shape, dtype, keeps_scores=placed.type == "cpu"), cap_bytes(holding, placed)
    reject_small_cap(folder, memory, cap)
    if placed.type == "cpu":
        give_back_from_now_on()
    model = without_weights(folder, dtype=dtype)
    reject_mixed_types(folder, model, dtype)
    layers = Layers(weights, getattr(torch, dtype), placed, memory, cap)
    fill(model, layers, shape, family)
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    LAYERS_OF[model] = layers
    return model.eval()


def reject_mixed_types(folder: Path, model: PreTrainedModel, dtype: str) -> None:
    """Raise UserError if transformers would keep some weights in a dtype other than the requested one."""
    kept = getattr(model, "_keep_in_fp32_modules", None)
    if kept and dtype == "float16":
        raise UserError(
            f"{folder}: in float16 transformers keeps {', '.join(sorted(kept))} in float32, but layers read "
            "from disk have one dtype. Set bfloat16 or float32."
        )


class EmptyWithoutStorage(TorchFunctionMode):
    """Allocates `torch.empty`, of which modules make their weights, on the meta device.

    accelerate frees a weight's memory only upon registration, and memory freed in small pieces is not always reused.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if func is torch.empty:
            options["device"] = "meta"
        return func(*args, **options)


def without_weights(folder: Path, *, dtype: str) -> PreTrainedModel:
    """Build the model of a directory without parameter storage; buffers, which no checkpoint contains, are real."""
    config, opens = load_config(folder), model_class(folder, encoder_decoder=False)
    with init_empty_weights(include_buffers=False), EmptyWithoutStorage():
        lm = opens.from_config(config, dtype=getattr(torch, dtype), trust_remote_code=False)
    lm.tie_weights()
    return lm


def fill(model: PreTrainedModel, layers: Layers, shape: Shape, family: Family) -> None:
    """Load the resident parameters and replace the forward of modules that are read from disk."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    assert isinstance(head, nn.Linear)
    assert isinstance(embedding, nn.Embedding)
    if layers.device.type == "cpu" and slow_type() == layers.dtype:
        # Linear layers multiply as in a whole model on this CPU, without the packed copy for few rows.
        for each in model.modules():
            if type(each) is nn.Linear:
                each.forward = partial(quick_forward, each, None)  # pyright: ignore[reportAttributeAccessIssue]
    if not shape.tied:  # transformers ties even configs that only seem to state it
        head.weight = nn.Parameter(torch.empty_like(embedding.weight), requires_grad=False)
    words = family.weight("embedding")
    rows = [each for each in model.modules() if isinstance(each, nn.Embedding) and each.weight is embedding.weight]
    on_disk = {id(embedding.weight), id(head.weight)}
    for stack, prefix in enumerate(prefixes(family)):
        stacked = model.get_submodule(prefix.removesuffix("."))
        assert isinstance(stacked, nn.ModuleList)
        for index, module in enumerate(stacked):
            on_disk |= {id(parameter) for parameter in module.parameters()}
            parameters = module.named_parameters()
            names = {name: family.stored_names(f"{prefix}{index}.{name}", len(each)) for name, each in parameters}
            layers.parts.append(replaced(module, names, layers, stack=stack, number=len(layers.parts)))
    settle(model, layers, family, on_disk)
    for each in rows:
        each.padding_idx = None  # rows are renumbered at every call
        each.forward = partial(layers.embed, each, words, each.forward)  # pyright: ignore[reportAttributeAccessIssue]
    stored = words if shape.tied else family.weight("head")
    replaced(head, {"weight": stored}, layers, stack=len(prefixes(family)) - 1, number=HEAD)


def prefixes(family: Family) -> list[str]:
    return [*([family.encoder.layer_prefix] if family.encoder else []), family.layer_prefix]


def replaced(
    module: nn.Module, names: Mapping[str, StoredNames], layers: Layers, *, stack: int, number: int
) -> DiskPart:
    part = DiskPart(module, names, stack, number, module.forward)
    module.forward = partial(layers.run, part)  # pyright: ignore[reportAttributeAccessIssue]
    return part


def settle(model: PreTrainedModel, layers: Layers, family: Family, on_disk: set[int]) -> None:
    """Load resident parameters; those on disk keep size, dtype and device, and read as NaN."""
    absent = torch.full((), torch.nan, dtype=layers.dtype, device=layers.device)
    with torch.no_grad():
        for name, parameter in list(model.named_parameters()):
            module, _, kind = name.rpartition(".")
            held = model.get_submodule(module)
            if id(parameter) in on_disk:
                value = absent.expand(parameter.shape)
            else:
                value = layers.read(family.stored_name(name))
            given = nn.Parameter(value, requires_grad=False)
            held.register_parameter(kind, given)
            for each in model.modules():
                for own, other in each.named_parameters(recurse=False):
                    if other is parameter:
                        each.register_parameter(own, given)
        for buffer_name, buffer in list(model.named_buffers()):
            module, _, kind = buffer_name.rpartition(".")
            model.get_submodule(module)._buffers[kind] = buffer.to(layers.device)  # noqa: SLF001


def load_target(
    folder: Path, *, dtype: str, holding: Holding = WHOLE, device: str | None = None, encoder_decoder: bool = False
) -> PreTrainedModel:
    """Load a target in eval mode.

    Args:
        device: A torch device; None takes "cuda" if available, else "cpu".
        encoder_decoder: With whole placement: allow encoder-decoder models of any family.

    Raises:
        UserError: As eval.models.load_model; or if there is too little memory.
    """
    if holding.placement == "layers":
        return load_layered(folder, dtype=dtype, device=device or default_device(), holding=holding)
    if holding.placement == "spread":
        return load_spread(folder, dtype=dtype, holding=holding)
    model = load_model(folder, dtype=dtype, device=device, bits=holding.bits, encoder_decoder=encoder_decoder)
    if model.device.type == "cpu":
        keep_freed_memory()
    return model


def load_spread(folder: Path, *, dtype: str, holding: Holding) -> PreTrainedModel:
    """Load a checkpoint over the GPUs, CPU memory and disk of the machine, by its device_map.

    Layers run where they are; those in CPU memory or on disk are moved to a GPU, or to the CPU, each time they run.

    Raises:
        UserError: If a cap is smaller than a layer.
    """
    # The computing device may take the recipe's limit, and must hold the largest layer whole.
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    computing: list[int | str] = [*range(num_gpus)] if num_gpus else ["cpu"]
    memory: dict[Any, int] = dict(get_max_memory())
    if holding.device_memory_gib is not None:
        memory |= dict.fromkeys(computing, int(holding.device_memory_gib * 2**30))
    weights, allowed = open_weights(folder), min(memory[name] for name in computing)
    largest, needed = largest_part(weights, dtype)
    if needed > allowed:
        raise UserError(
            f"{folder}: {largest} has {format_bytes(needed)} in {dtype} and must fit on one "
            f"device, which has {format_bytes(allowed)}. Raise {KEY}, or use a machine with more memory."
        )

    # Check every tensor once: those on disk are not checked when the model is loaded.
    for name in weights.info:
        tensor = weights.read(name).to(getattr(torch, dtype))
        reject_not_finite_tensor(str(weights.files[name]), name, tensor)

    offload = TemporaryDirectory(prefix="widedraft-offload-")  # for tensors stored in another dtype
    placing = {"device_map": "auto", "max_memory": memory, "offload_folder": offload.name}
    model = load_model(folder, dtype=dtype, placing=placing)
    finalize(model, offload.cleanup)
    if model.device.type == "meta":
        raise UserError(
            f"{folder}: its embedding does not fit on a device, which has {format_bytes(allowed)}. Raise {KEY}, "
            "or set target.placement to layers."
        )
    return model


def largest_part(weights: Weights, dtype: str) -> tuple[str, int]:
    """Return name and bytes of the largest layer, or other module, of a checkpoint in a dtype."""
    sizes = Counter[str]()
    for name, info in weights.info.items():
        layer = re.match(r".*?\.\d+(?=\.)", name)
        sizes[layer[0] if layer else name.rpartition(".")[0]] += prod(info.size) * DTYPE_BYTES[dtype]
    return sizes.most_common(1)[0]
