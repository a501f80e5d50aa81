"""Products of a few rows by every weight, the way this processor is fast at it.

A verification reads every weight once, as a step of one token does, and multiplies a few rows more. PyTorch asks MKL
for x W^T, which MKL computes for two to six rows in 1.6 to 2 times the time of one row where the processor has AVX2
and no AVX-512; W x^T, the same numbers, takes hardly longer than one row (bench/few_rows.py; docs/log.md, 2026-11-23).
Speculative decoding cannot pay where a verification costs 1.7 steps.

Shape suffixes used in this file:
    R = rows, I = inputs, O = outputs
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

MOST_ROWS = 6  # with more, x W^T is as fast
SLOW_AT_FEW_ROWS = "AVX2"  # as torch.backends.cpu.get_cpu_capability() names it; others were not found slow


def few_rows_are_slow() -> bool:
    """Whether x W^T is the slower form for few rows on this processor."""
    return torch.backends.mkl.is_available() and torch.backends.cpu.get_cpu_capability() == SLOW_AT_FEW_ROWS


def quicken_few_rows(model: nn.Module) -> None:
    """Have the linear layers of a model in float32 on the processor multiply few rows by W x^T.

    Results differ from those without by rounding alone. Training computes as before: this is of inference mode.
    """
    for module in model.modules():
        if type(module) is nn.Linear and module.weight.device.type == "cpu" and module.weight.dtype == torch.float32:
            module.forward = partial(few_rows_forward, module)  # pyright: ignore[reportAttributeAccessIssue]  # a layer's


def few_rows_forward(layer: nn.Linear, inputs: Tensor) -> Tensor:
    """What the layer gives: by W x^T for two to MOST_ROWS rows, if nothing is trained or compiled."""
    rows = inputs.numel() // inputs.shape[-1]
    here = torch.is_inference_mode_enabled() and not torch.compiler.is_compiling()
    if not here or not 2 <= rows <= MOST_ROWS:
        return linear(inputs, layer.weight, layer.bias)
    outputs_RO = product_of_few_rows(inputs.reshape(rows, -1), layer.weight)
    outputs = outputs_RO.view(*inputs.shape[:-1], -1)
    return outputs if layer.bias is None else outputs + layer.bias


def product_of_few_rows(rows_RI: Tensor, weight_OI: Tensor) -> Tensor:
    """outputs_RO = x W^T. Three rows take a quarter longer than four, and are filled up with one of zeros."""
    count = len(rows_RI)
    filled_RI = pad(rows_RI, (0, 0, 0, 1)) if count == 3 else rows_RI
    return torch.mm(weight_OI, filled_RI.t())[:, :count].t().contiguous()
