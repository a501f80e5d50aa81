"""Products of tokens by weights, the way this processor is fast at them.

PyTorch asks MKL for x W^T. Where the processor has AVX2 and no AVX-512, MKL reads weights from memory at half the speed
of others, and no form of the product is fast at two rows where the weights lie as PyTorch has them. oneDNN reads its
own layout at full speed: up to four rows take as long as one, and eight a sixth longer (docs/log.md, 2026-11-23). So a
model that decodes gets a second copy of its linear layers, packed; a verification, which reads every weight once as a
step of one token does, then costs hardly more than such a step. On an Intel processor with avx512_bf16 and no amx_bf16
the same holds in bfloat16, and not in float32 (docs/log.md, 2026-11-24).

Shape suffixes used in this file:
    R = rows, I = inputs, O = outputs
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from architectures.files.number_types import few_rows_gain_alone

FEW_ROWS = 64  # packed weights are read for so many; for more, as in training or replay, they gain nothing
MOST_PACKED_BYTES = 8 << 30  # of a model's linear layers; a second copy of more might not fit
ROWS_PACKED_FOR = 8  # what oneDNN is told; one to sixteen rows are alike with it
SLOW_WITH_MKL = "AVX2"  # as torch.backends.cpu.get_cpu_capability() names it; others were not found slow in float32


@dataclass(eq=False)
class Packed:
    """A layer's weights as oneDNN reads them fastest: made when first asked for, and again when they have changed."""

    weight: Tensor | None = None
    made_of: tuple[int, int] | None = None

    def of(self, weight_OI: Tensor) -> Tensor:
        """The packed form of a weight."""
        now = weight_OI.data_ptr(), 0 if weight_OI.is_inference() else weight_OI._version  # noqa: SLF001
        if self.weight is None or self.made_of != now:
            self.weight, self.made_of = packed_weight(weight_OI.detach()), now
        return self.weight

    def __deepcopy__(self, memo: dict[int, object]) -> "Packed":
        """Of another layer, which packs its own."""
        return Packed()

    def __reduce__(self) -> tuple[type["Packed"], tuple[()]]:
        """Nothing of it goes into a file or another process."""
        return Packed, ()


def slow_type() -> torch.dtype | None:
    """The number type in which PyTorch's usual form is the slower one on this processor, if the others are there."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return None
    if torch.backends.cpu.get_cpu_capability() == SLOW_WITH_MKL:
        return torch.float32
    return torch.bfloat16 if few_rows_gain_alone() else None


def quicken_products(model: nn.Module, dtype: torch.dtype = torch.float32) -> None:
    """Have the linear layers of a model that has this number type on the processor multiply in the fastest form.

    Results differ from those without by rounding alone. Training computes as before: this is of inference mode. Not for
    a model that is trained: a fused optimiser changes weights without counting it, and packed copies would go stale.
    """
    layers = [
        module
        for module in model.modules()
        if type(module) is nn.Linear and module.weight.device.type == "cpu" and module.weight.dtype == dtype
    ]
    packs = sum(layer.weight.nbytes for layer in layers) <= MOST_PACKED_BYTES
    for layer in layers:
        quick = partial(quick_forward, layer, Packed() if packs else None)
        layer.forward = quick  # pyright: ignore[reportAttributeAccessIssue]  # a layer's


def bytes_to_pack(model: nn.Module) -> int:
    """Bytes of the second copies of weights that decoding with a model will make, and has not made."""
    forwards = (vars(module).get("forward") for module in model.modules())
    quick = (forward.args for forward in forwards if isinstance(forward, partial) and forward.func is quick_forward)
    return sum(layer.weight.nbytes for layer, packed in quick if packed is not None and packed.weight is None)


def quick_forward(layer: nn.Linear, packed: Packed | None, inputs: Tensor) -> Tensor:
    """What the layer gives: in the fastest form for so many rows, if nothing is trained or compiled."""
    if not torch.is_inference_mode_enabled() or torch.compiler.is_compiling():
        return linear(inputs, layer.weight, layer.bias)
    rows = inputs.numel() // inputs.shape[-1]
    weight = packed.of(layer.weight) if packed is not None and rows <= FEW_ROWS else layer.weight
    return onednn_product(inputs, weight, layer.bias)


def packed_weight(weight_OI: Tensor) -> Tensor:
    """The weight in a layout of oneDNN's own."""
    pack = torch.ops.mkldnn._reorder_linear_weight  # noqa: SLF001  # its name
    return pack(weight_OI, ROWS_PACKED_FOR)  # pyright: ignore[reportCallIssue]  # torch.ops has no types


def onednn_product(inputs: Tensor, weight: Tensor, bias_O: Tensor | None) -> Tensor:
    """The product, and the bias, by oneDNN: the operation that PyTorch's own compiler puts in the place of a layer.

    Args:
        inputs: Of I numbers each.
        weight: weight_OI, or what Packed makes of it.
        bias_O: May be None.
    """
    product = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001  # its name
    return product(inputs, weight, bias_O, "none", [], "")  # pyright: ignore[reportCallIssue]  # torch.ops has no types
