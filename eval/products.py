"""Products of tokens by weights, the way this processor is fast at them.

PyTorch asks MKL for x W^T. Where the processor has AVX2 and no AVX-512, MKL reads weights from memory at half the speed
of others: oneDNN takes 0.87 of its time for one row and 0.74 for 48, and MKL's own W x^T, the same numbers, 0.6 for
two to four rows (bench/products.py; docs/log.md, 2026-11-23). So plain decoding is faster in this form, and a
verification, which reads every weight once as a step of one token does, costs hardly more than such a step.

Shape suffixes used in this file:
    R = rows, I = inputs, O = outputs
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

TURNED_ROWS = (2, 4)  # fewest and most that W x^T is the fastest for; oneDNN for all others
SLOW_WITH_MKL = "AVX2"  # as torch.backends.cpu.get_cpu_capability() names it; others were not found slow


def products_are_slow() -> bool:
    """Whether PyTorch's usual form is the slower one on this processor, and the others are there."""
    there = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return there and torch.backends.cpu.get_cpu_capability() == SLOW_WITH_MKL


def quicken_products(model: nn.Module) -> None:
    """Have the linear layers of a model in float32 on the processor multiply in the fastest form.

    Results differ from those without by rounding alone. Training computes as before: this is of inference mode.
    """
    for module in model.modules():
        if type(module) is nn.Linear and module.weight.device.type == "cpu" and module.weight.dtype == torch.float32:
            module.forward = partial(quick_forward, module)  # pyright: ignore[reportAttributeAccessIssue]  # a layer's


def quick_forward(layer: nn.Linear, inputs: Tensor) -> Tensor:
    """What the layer gives: in the fastest form for so many rows, if nothing is trained or compiled."""
    if not torch.is_inference_mode_enabled() or torch.compiler.is_compiling():
        return linear(inputs, layer.weight, layer.bias)
    rows = inputs.numel() // inputs.shape[-1]
    fewest, most = TURNED_ROWS
    product = turned_product if fewest <= rows <= most else onednn_product
    return product(inputs, layer.weight, layer.bias)


def onednn_product(inputs: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """The product, and the bias, by oneDNN: the operation that PyTorch's own compiler puts in the place of a layer."""
    product = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001  # its name
    return product(inputs, weight_OI, bias_O, "none", [], "")  # pyright: ignore[reportCallIssue]  # torch.ops has no types


def turned_product(inputs: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """The same as (W x^T)^T. Three rows take a quarter longer than four, so they get one of zeros."""
    rows_RI = inputs.reshape(-1, inputs.shape[-1])
    count = len(rows_RI)
    filled_RI = pad(rows_RI, (0, 0, 0, 1)) if count == 3 else rows_RI
    outputs_RO = torch.mm(weight_OI, filled_RI.t())[:, :count].t().contiguous()
    outputs = outputs_RO.view(*inputs.shape[:-1], -1)
    return outputs if bias_O is None else outputs + bias_O
