"""Sums of token losses from hidden states, in chunks of tokens: no [tokens, vocabulary] tensor ever exists.

Knows neither teacher nor loss: both stand behind a callback that is given the student's logits of some rows. Two heads
of 128k entries over 8,192 tokens would be 25 GB of logits, probabilities and gradients; here they are one chunk's.

Shape suffixes used in this file:
    A = tokens, one row each, C = tokens of one chunk, H = hidden width
    V = entries of the head: all ids of the vocabulary, or those that a small head outputs; K = some of them
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from distill.formulas.losses import GPU_CHUNKS, chunk_size

FunctionOfRows = Callable[[Tensor, slice], Tensor]
GRADIENT_DTYPES = (
    None,
    torch.float32,
    torch.float32,
)  # hidden states', written once a row, in their own; sums in float32


@dataclass(frozen=True)
class Head:
    """An output head, as far as logits depend on it.

    Attributes:
        weight_VH: Its matrix.
        bias_V: Added to the logits, where there is one.
        softcap: Gemma's bound c on logits z, which become c * tanh(z / c).
        divisor: What Granite divides its logits by.
        vocab_size: The first so many rows are used; those behind them are padding, and get no logit and no gradient.
        ids_V: The token id that each row outputs, ascending; None where row k is token k.
    """

    weight_VH: Tensor
    bias_V: Tensor | None
    softcap: float | None
    vocab_size: int
    ids_V: Tensor | None = None
    divisor: float = 1.0

    def logits(self, hidden_AH: Tensor) -> Tensor:
        """Logits_AV over the first vocab_size entries, in the dtype that autocast or the head has."""
        weight_VH, bias_V = self.used()
        return self.shaped(linear(hidden_AH, weight_VH, bias_V))

    def used(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias without the rows of padding."""
        return self.weight_VH[: self.vocab_size], None if self.bias_V is None else self.bias_V[: self.vocab_size]

    def shaped(self, logits_AV: Tensor) -> Tensor:
        """The logits divided, and under the softcap."""
        logits_AV = logits_AV if self.divisor == 1 else logits_AV / self.divisor
        return logits_AV if self.softcap is None else self.softcap * (logits_AV / self.softcap).tanh()

    def narrowed(self, vocab_size: int) -> "Head":
        """The same head over fewer entries, never more than it has."""
        return replace(self, vocab_size=min(vocab_size, self.vocab_size))

    def rows_of(self, ids_K: Tensor) -> "Head":
        """A head of its own with the rows of some token ids, copied out of this one, which outputs every id."""
        assert self.ids_V is None, "rows of a small head are not found by their ids"
        bias_K = None if self.bias_V is None else self.bias_V[ids_K]
        return replace(self, weight_VH=self.weight_VH[ids_K], bias_V=bias_K, vocab_size=len(ids_K), ids_V=ids_K)

    def frozen(self, dtype: torch.dtype) -> "Head":
        """The same head in another dtype, out of reach of gradients."""
        bias_V = None if self.bias_V is None else self.bias_V.detach().to(dtype)
        return replace(self, weight_VH=self.weight_VH.detach().to(dtype), bias_V=bias_V)


def sum_of_rows(hidden_AH: Tensor, head: Head, loss_of_rows: FunctionOfRows) -> Tensor:
    """The sum of a loss over tokens: from whole logits where they are one chunk, else chunk by chunk.

    See chunked_sum. Where all tokens fit into one chunk, chunks save nothing, and plain autograd computes no gradient
    that nobody asks for.
    """
    chunk_tokens = rows_at_a_time(hidden_AH, head.vocab_size)
    if len(hidden_AH) <= chunk_tokens:
        return plain_sum(hidden_AH, head, loss_of_rows)
    return chunked_sum(hidden_AH, head, loss_of_rows, chunk_tokens=chunk_tokens)


def rows_at_a_time(hidden_AH: Tensor, entries: int) -> int:
    """Rows of a chunk where each has so many entries."""
    return chunk_size(entries) * (GPU_CHUNKS if hidden_AH.is_cuda else 1)


def plain_sum(hidden_AH: Tensor, head: Head, loss_of_rows: FunctionOfRows) -> Tensor:
    """What chunked_sum returns, from the logits of all tokens at once: the reference, and faster for few tokens."""
    logits_AV = head.logits(hidden_AH)
    with torch.autocast(hidden_AH.device.type, enabled=False):
        return loss_of_rows(logits_AV, slice(0, len(hidden_AH))).sum()


def chunked_sum(
    hidden_AH: Tensor,
    head: Head,
    loss_of_rows: FunctionOfRows,
    *,
    chunk_tokens: int,
) -> Tensor:
    """The sum of a loss over tokens, whose gradient is made on the way and only scaled in the backward pass.

    Gradients flow to hidden_AH and to the head's weight and bias, and to nothing the callback reads. Works under
    autocast, where the matrix products of the head are in its dtype; the loss never is. The gradient of the weight is
    added up in float32. Backward may run once.

    Args:
        hidden_AH: What the last norm put out.
        head: Of the student.
        loss_of_rows: Takes the student's logits_CV of some rows, and which rows of A they are; returns loss_C, float32.
        chunk_tokens: Rows whose logits exist at a time, > 0.

    Returns:
        Scalar float32; 0 when there is no row.
    """
    job = Job(head, loss_of_rows, chunk_tokens)
    if not torch.is_grad_enabled():
        return map_rows(hidden_AH, head, loss_of_rows, chunk_tokens=chunk_tokens).sum()
    return ChunkedSum.apply(hidden_AH, head.weight_VH, head.bias_V, job)  # pyright: ignore[reportReturnType]


@torch.no_grad()
def map_rows(
    hidden_AH: Tensor,
    head: Head,
    function_of_rows: FunctionOfRows,
    *,
    chunk_tokens: int | None = None,
    entries: int | None = None,
) -> Tensor:
    """The value of a function of logits for every token, without gradients: metrics, or what tokens are chosen by.

    Args:
        hidden_AH: What the last norm put out.
        head: Whose logits the function is given.
        function_of_rows: Takes logits_CV of some rows, and which rows of A they are; returns one row for each.
        chunk_tokens: Rows whose logits exist at a time; by the entries of each if left out.
        entries: Columns of the widest tensor that the function makes of its logits; those of the head if left out.

    Returns:
        The function's rows, all A of them.
    """
    dtype = product_dtype(hidden_AH)
    with torch.autocast(hidden_AH.device.type, enabled=False):
        cast = head.frozen(dtype)
        values = [
            function_of_rows(cast.logits(hidden_AH[rows].to(dtype)), rows)
            for rows in chunks(len(hidden_AH), chunk_tokens or rows_at_a_time(hidden_AH, entries or head.vocab_size))
        ]
    return torch.cat(values)


@dataclass(frozen=True)
class Job:
    """What ChunkedSum needs besides the tensors that gradients flow to."""

    head: Head
    loss_of_rows: FunctionOfRows
    chunk_tokens: int


class ChunkedSum(torch.autograd.Function):
    """The sum and, while it is computed, its gradients: those of a chunk's logits by autograd, the rest by hand."""

    @staticmethod
    def forward(ctx: Any, hidden_AH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, job: Job) -> Tensor:
        """Chunk after chunk: logits, loss, gradient."""
        dtype = product_dtype(hidden_AH)
        inputs = (hidden_AH, weight_VH, bias_V)
        ctx.gradients = gradients = [
            torch.zeros_like(tensor, dtype=kept) if tensor is not None and needed else None
            for tensor, needed, kept in zip(inputs, ctx.needs_input_grad, GRADIENT_DTYPES, strict=False)
        ]
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in inputs]
        total = torch.zeros((), device=hidden_AH.device)
        with torch.autocast(hidden_AH.device.type, enabled=False):
            head = job.head.frozen(dtype)
            for rows in chunks(len(hidden_AH), job.chunk_tokens):
                hidden_CH = hidden_AH[rows].to(dtype)
                loss, grad_CV = loss_and_gradient(hidden_CH, head, job, rows)
                total += loss
                add_gradients(gradients, rows, grad_CV, hidden_CH, head.used()[0])
        return total

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # one output, one gradient
        ctx: Any, grad_output: Tensor
    ) -> tuple[Tensor | None, ...]:
        """The gradients made in forward, scaled where they lie."""
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError("chunked_sum keeps its gradients for one backward pass. Compute the sum again.")
        scaled = (
            None if gradient is None else gradient.mul_(grad_output).to(dtype)
            for gradient, dtype in zip(gradients, ctx.dtypes, strict=True)
        )
        return (*scaled, None)


def loss_and_gradient(hidden_CH: Tensor, head: Head, job: Job, rows: slice) -> tuple[Tensor, Tensor]:
    """The loss of one chunk, and its gradient with respect to the logits before divisor and softcap."""
    weight_VH, bias_V = head.used()
    logits_CV = linear(hidden_CH, weight_VH, bias_V).requires_grad_()
    with torch.enable_grad():
        loss = job.loss_of_rows(head.shaped(logits_CV), rows).sum()
    (grad_CV,) = torch.autograd.grad(loss, logits_CV)
    return loss.detach(), grad_CV


def add_gradients(
    gradients: list[Tensor | None], rows: slice, grad_CV: Tensor, hidden_CH: Tensor, weight_VH: Tensor
) -> None:
    """Carry the gradient of a chunk's logits on to hidden states, weight and bias, whichever are wanted."""
    of_hidden_AH, of_weight_VH, of_bias_V = gradients
    vocab_size = len(weight_VH)
    if of_hidden_AH is not None:
        of_hidden_AH[rows] = (grad_CV @ weight_VH).to(of_hidden_AH.dtype)
    if of_weight_VH is not None:
        used_VH = of_weight_VH[:vocab_size]
        if grad_CV.dtype == torch.float32:
            used_VH.addmm_(grad_CV.T, hidden_CH)  # no second matrix of that size
        else:
            used_VH += grad_CV.T @ hidden_CH
    if of_bias_V is not None:
        of_bias_V[:vocab_size] += grad_CV.sum(dim=0, dtype=torch.float32)


def product_dtype(hidden_AH: Tensor) -> torch.dtype:
    """The number type of matrix products here and now: autocast's where it is on."""
    device = hidden_AH.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_AH.dtype


def chunks(num_tokens: int, chunk_tokens: int) -> Iterator[slice]:
    """Slices of at most chunk_tokens rows that cover all tokens; one empty slice where there are none."""
    for start in range(0, max(1, num_tokens), chunk_tokens):
        yield slice(start, min(start + chunk_tokens, num_tokens))
