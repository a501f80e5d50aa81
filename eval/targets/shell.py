"""A model without weights, made ready to read them from the disk: what stays is read, the rest asks when it runs."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import GenerationConfig, PreTrainedModel

from architectures.checkpoints.weights import Weights, open_weights, require_tensors
from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.families.family import Family
from architectures.settings.holding import Holding
from architectures.shapes.shape import Shape, checkpoint_tensors
from architectures.targets.target import read_config, require_whole_head
from eval.models.loading import give_back_from_now_on, load_config, model_class
from eval.models.products import quick_forward, slow_type
from eval.targets.caps import cap_bytes
from eval.targets.layer_memory import layer_memory, refuse_small_cap
from eval.targets.layered import HEAD, LAYERS_OF, DiskPart, Layers


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
