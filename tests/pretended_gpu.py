"""A GPU in name only: tensors of the processor that say they are on cuda:0, and refuse what a GPU's tensors refuse.

A processor has one memory, so code that mixes tensors of two devices works there and fails on its first GPU. Within
`pretended_gpu()` whatever is made on "cuda", or moved there, is such a tensor: its arithmetic is the processor's, so
results can be compared, but no function takes it beside a tensor of the processor, makes an array of it, or draws it
from the processor's generator. It shows no kernels, CUDA graphs, memory or streams, nor what Composer does on a GPU.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

CUDA = torch.device("cuda:0")


class OnGpu(Tensor):
    """A tensor that says it is on cuda:0; `held` is where its numbers are."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnGpu":
        return Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype
        )

    def __init__(self, held: Tensor) -> None:
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        unwrapped, named = tree_map_only(OnGpu, lambda each: each.held, (args, kwargs or {}))
        found = tree_map_only(Tensor, OnGpu, func(*unwrapped, **named))
        return return_and_correct_aliasing(func, args, kwargs or {}, found)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnGpu({self.held})"


class Pretending(TorchFunctionMode):
    """Every call of torch from Python: refuses what mixes devices, and makes and moves tensors as it is told."""

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if args and isinstance(args[0], OnGpu) and func in RESPONSES:
            return RESPONSES[func](args[0])
        if func in (Tensor.to, Tensor.cuda, Tensor.cpu):
            return moved(func, args, kwargs)
        if func is torch._has_compatible_shallow_copy_type:  # a module that moves asks whether to keep its parameters
            return all(isinstance(each, OnGpu) for each in args)
        reject_mixing(func, args, kwargs)
        if not is_gpu(kwargs.get("device")):
            return func(*args, **kwargs)
        made = func(*args, **{**kwargs, "device": "cpu"})
        return OnGpu(made) if type(made) is Tensor else made


def reject_mixing(func: Any, args: Any, kwargs: Any) -> None:
    """Raise RuntimeError where a GPU would: beside its tensors may stand numbers, indices, and what is copied."""
    given = tree_leaves((args, kwargs))
    on_gpu = is_gpu(kwargs.get("device")) or any(isinstance(each, OnGpu) for each in given)
    if not on_gpu:
        return
    if any(isinstance(each, torch.Generator) and each.device.type == "cpu" for each in given):
        raise RuntimeError(f"{func}: Expected a 'cuda' device type for generator but found 'cpu'")
    strangers = [each for each in given if isinstance(each, Tensor) and not isinstance(each, OnGpu)]
    strangers = [each for each in strangers if each.dim() > 0 or (each is args[0] and func.__name__ in CHANGING)]
    copies = func is Tensor.copy_ or (func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], OnGpu))
    if strangers and not copies:
        shapes = ", ".join(str(tuple(each.shape)) for each in strangers)
        raise RuntimeError(f"{func}: Expected all tensors to be on the same device; on the processor is {shapes}")


def is_gpu(place: Any) -> bool:
    return isinstance(place, str | torch.device) and torch.device(place).type == "cuda"


def moved(func: Any, args: Any, kwargs: Any) -> Tensor:
    """A tensor after `to`, `cuda` or `cpu`."""
    tensor, *rest = args
    told = [*rest, *kwargs.values()]
    others = [each for each in told if isinstance(each, Tensor)]
    places = [torch.device(each) for each in told if isinstance(each, str | torch.device)]
    places += [CUDA if isinstance(each, OnGpu) else each.device for each in others]
    place = {Tensor.cuda: CUDA, Tensor.cpu: torch.device("cpu")}.get(func, places[0] if places else None)
    dtype = next((each for each in told if isinstance(each, torch.dtype)), others[0].dtype if others else tensor.dtype)
    if place is None or is_gpu(place) == isinstance(tensor, OnGpu):
        return Tensor.to(tensor, dtype=dtype, copy=bool(kwargs.get("copy")))
    return ToGpu.apply(tensor, dtype) if is_gpu(place) else ToProcessor.apply(tensor, dtype)


class ToGpu(torch.autograd.Function):
    """Copies, as from one memory to another."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = tensor.dtype
        return OnGpu(tensor.detach().to(dtype, copy=True))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return gradient.held.to(ctx.dtype), None


class ToProcessor(torch.autograd.Function):
    """And back."""

    @staticmethod
    def forward(ctx: Any, tensor: OnGpu, dtype: torch.dtype) -> Tensor:
        ctx.dtype = tensor.dtype
        return tensor.held.detach().to(dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return OnGpu(gradient.to(ctx.dtype)), None


def no_array(_tensor: Tensor) -> Any:
    raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")


RESPONSES = {
    Tensor.device.__get__: lambda _tensor: CUDA,
    Tensor.is_cuda.__get__: lambda _tensor: True,
    Tensor.is_cpu.__get__: lambda _tensor: False,
    Tensor.get_device: lambda _tensor: 0,
    Tensor.numpy: no_array,
    Tensor.__array__: no_array,
    Tensor.tolist: lambda tensor: tensor.held.tolist(),
}
CHANGING = ("add_", "sub_", "mul_", "div_", "__iadd__", "__isub__", "__imul__", "__itruediv__")


@contextmanager
def pretended_gpu() -> Iterator[torch.device]:
    """What is moved to the device given is on a GPU in name; autocast of "cuda" is the processor's."""
    named = {name: renamed(getattr(torch, name)) for name in ("autocast", "get_autocast_dtype", "is_autocast_enabled")}
    with ExitStack() as stack:
        for name, function in named.items():
            stack.enter_context(patch.object(torch, name, function))
        stack.enter_context(patch.object(torch.cuda, "synchronize", lambda _device=None: None))
        # torch makes no views of a subclass in inference mode
        stack.enter_context(patch.object(torch._C, "_InferenceMode", no_gradients))
        stack.enter_context(Pretending())
        yield CUDA


def no_gradients(mode: bool) -> Any:
    return torch.no_grad() if mode else nullcontext()


def renamed(function: Any) -> Any:
    """The same of the processor, where it is asked for a GPU."""

    def of_processor(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return function("cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    return of_processor
