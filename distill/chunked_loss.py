"""Sums of token losses from hidden states, in chunks of tokens: no [tokens, vocabulary] tensor ever exists.

Independent of teacher and loss: both are behind a callback that receives the student's logits of some rows. Two heads
of 128k entries over 8,192 tokens would be 25 GB of logits, probabilities and gradients; here only one chunk of them
exists.

Reduced vocabulary: let S be the ids that the head outputs, p the teacher's distribution, P = p(S), p_S = p / P on S,
and q the student's distribution, zero outside S. A position whose response token is outside S is not trained on (its
loss is 0, and it counts in the mean); at all other positions the student is compared with p_S, which is the softmax of
the teacher's logits over S.

For responses sampled from the teacher at temperature 1 this has the gradient of the forward KL in expectation.
KL(p || q) is infinite if P < 1, but the part of it that depends on q is -Σ_S p log q = P (KL(p_S || q) + H(p_S)),
whose gradient is P times that of KL(p_S || q). The probability that the response token is in S is P, so the
expectation over responses, E[1(token in S)] KL(p_S || q), has the same gradient; and only K logits of the teacher are
computed. `cross_entropy` is the same with the token in place of p_S: E[1(token in S) (-log q(token))] = -Σ_S p log q.
Any other loss L has the expectation P L(p_S, q), which is zero at q = p_S, the maximum-likelihood q. There
Σ_S min(p, q) = P, the highest acceptance rate of any q on S; and before convergence
P Σ_S min(p_S, q) = Σ_S min(p, P q) is a lower bound of the true alpha. For greedy responses P is 0 or 1: if the token
is outside S, no student is accepted.

Shape suffixes used in this file:
    A = tokens, one row each
    C = tokens of one chunk
    H = hidden width
    V = entries of the head: all ids of the vocabulary, or those that a small head outputs
    K = some of them
    B = rows of the batch
    T = tokens per row
    D = tokens of the decoder of an encoder-decoder model: its start token and the response
    R = rows of the packed batch
    W = slots per packed row
    X = any axes
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from architectures.shapes import Shape
from architectures.vocabulary_head import head_ids, response_places, translated, translation
from distill.data.batches import cheapest_layout, lengths_read, packed, reject_attention, slots_of, texts_apart
from distill.estimate import head_flops
from distill.losses import GPU_CHUNKS, chunk_size

FunctionOfRows = Callable[[Tensor, slice], Tensor]


@dataclass(frozen=True)
class Head:
    """Output head: all that logits depend on besides hidden states.

    Attributes:
        softcap: Gemma's bound c on logits z, which become c * tanh(z / c).
        divisor: Granite's divisor of the logits.
        vocab_size: Number of leading rows in use; later rows are padding, without logits or gradient.
        ids_V: Token id of each row, ascending; None if row k is token k.
    """

    weight_VH: Tensor
    bias_V: Tensor | None
    softcap: float | None
    vocab_size: int
    ids_V: Tensor | None = None
    divisor: float = 1.0

    def logits(self, hidden_AH: Tensor) -> Tensor:
        """Compute logits_AV in autocast's or the head's dtype."""
        weight_VH, bias_V = self.used()
        return self.shaped(linear(hidden_AH, weight_VH, bias_V))

    def used(self) -> tuple[Tensor, Tensor | None]:
        """Return weight and bias without padding."""
        return self.weight_VH[: self.vocab_size], None if self.bias_V is None else self.bias_V[: self.vocab_size]

    def shaped(self, logits_AV: Tensor) -> Tensor:
        """Apply divisor and softcap to logits."""
        logits_AV = logits_AV if self.divisor == 1 else logits_AV / self.divisor
        return logits_AV if self.softcap is None else self.softcap * (logits_AV / self.softcap).tanh()

    def narrowed(self, vocab_size: int) -> "Head":
        return replace(self, vocab_size=min(vocab_size, self.vocab_size))

    def rows_of(self, ids_K: Tensor) -> "Head":
        """Copy the rows of some token ids; requires a head that outputs every id."""
        assert self.ids_V is None, "rows of a reduced head are not indexed by token id"
        bias_K = None if self.bias_V is None else self.bias_V[ids_K]
        return replace(self, weight_VH=self.weight_VH[ids_K], bias_V=bias_K, vocab_size=len(ids_K), ids_V=ids_K)

    def frozen(self, dtype: torch.dtype) -> "Head":
        bias_V = None if self.bias_V is None else self.bias_V.detach().to(dtype)
        return replace(self, weight_VH=self.weight_VH.detach().to(dtype), bias_V=bias_V)


def sum_of_rows(hidden_AH: Tensor, head: Head, loss_of_rows: FunctionOfRows) -> Tensor:
    """Sum a loss over tokens: from full logits if they fit in one chunk, else by `chunked_sum`.

    A single chunk would save nothing, and plain autograd computes only the gradients that are required.
    """
    chunk_tokens = rows_at_a_time(hidden_AH, head.vocab_size)
    if len(hidden_AH) <= chunk_tokens:
        return plain_sum(hidden_AH, head, loss_of_rows)
    return chunked_sum(hidden_AH, head, loss_of_rows, chunk_tokens=chunk_tokens)


def rows_at_a_time(hidden_AH: Tensor, entries: int) -> int:
    return chunk_size(entries) * (GPU_CHUNKS if hidden_AH.is_cuda else 1)


def plain_sum(hidden_AH: Tensor, head: Head, loss_of_rows: FunctionOfRows) -> Tensor:
    """Compute `chunked_sum` from all logits at once: the reference, and faster for few tokens."""
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
    """Sum a loss over tokens, computing its gradient in the forward pass; the backward pass only scales it.

    Gradients flow to hidden_AH and to the head's weight and bias, not to tensors that the callback captures. Under
    autocast the matrix products of the head use its dtype; the loss never does. The gradient of the weight is
    accumulated in float32. Backward may run only once.

    Args:
        hidden_AH: Output of the last norm.
        loss_of_rows: Maps the student's logits_CV and their slice of A to loss_C, float32.

    Returns:
        Scalar float32; 0 without rows.
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
    """Map a function over the logits of all tokens, without gradients, and concatenate its A rows.

    Args:
        function_of_rows: Maps logits_CV and their slice of A to one row each.
        chunk_tokens: Derived from `entries` by default.
        entries: Columns of the widest tensor that the function creates; those of the head by default.
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
    """Arguments of ChunkedSum that receive no gradient."""

    head: Head
    loss_of_rows: FunctionOfRows
    chunk_tokens: int


class ChunkedSum(torch.autograd.Function):
    """Sum with gradients computed in forward: of a chunk's logits by autograd, of head and hidden states by hand."""

    @staticmethod
    def forward(ctx: Any, hidden_AH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, job: Job) -> Tensor:
        dtype = product_dtype(hidden_AH)
        inputs = (hidden_AH, weight_VH, bias_V)
        dtypes = (None, torch.float32, torch.float32)  # rows of hidden states are written once; the rest are sums
        ctx.gradients = of_hidden_AH, of_weight_VH, of_bias_V = [
            torch.zeros_like(tensor, dtype=kept) if tensor is not None and needed else None
            for tensor, needed, kept in zip(inputs, ctx.needs_input_grad, dtypes, strict=False)
        ]
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in inputs]
        total = torch.zeros((), device=hidden_AH.device)
        with torch.autocast(hidden_AH.device.type, enabled=False):
            head = job.head.frozen(dtype)
            weight_VH, _ = head.used()
            for rows in chunks(len(hidden_AH), job.chunk_tokens):
                hidden_CH = hidden_AH[rows].to(dtype)
                loss, grad_CV = loss_and_gradient(hidden_CH, head, job, rows)
                total += loss

                # Accumulate the required gradients from those of the chunk's logits.
                if of_hidden_AH is not None:
                    of_hidden_AH[rows] = (grad_CV @ weight_VH).to(of_hidden_AH.dtype)
                if of_weight_VH is not None and grad_CV.dtype == torch.float32:
                    of_weight_VH[: len(weight_VH)].addmm_(grad_CV.T, hidden_CH)  # without a second matrix of that size
                elif of_weight_VH is not None:
                    of_weight_VH[: len(weight_VH)] += grad_CV.T @ hidden_CH
                if of_bias_V is not None:
                    of_bias_V[: len(weight_VH)] += grad_CV.sum(dim=0, dtype=torch.float32)
        return total

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # one output, one gradient
        ctx: Any, grad_output: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Scale the gradients computed in forward, in place."""
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError("chunked_sum keeps its gradients for one backward pass. Compute the sum again.")
        scaled = (
            None if gradient is None else gradient.mul_(grad_output).to(dtype)
            for gradient, dtype in zip(gradients, ctx.dtypes, strict=True)
        )
        return (*scaled, None)


def loss_and_gradient(hidden_CH: Tensor, head: Head, job: Job, rows: slice) -> tuple[Tensor, Tensor]:
    """Return the loss of a chunk, and its gradient with respect to the logits before divisor and softcap."""
    weight_VH, bias_V = head.used()
    logits_CV = linear(hidden_CH, weight_VH, bias_V).requires_grad_()
    with torch.enable_grad():
        loss = job.loss_of_rows(head.shaped(logits_CV), rows).sum()
    (grad_CV,) = torch.autograd.grad(loss, logits_CV)
    return loss.detach(), grad_CV


def product_dtype(hidden_AH: Tensor) -> torch.dtype:
    """Return autocast's dtype if enabled, else that of the hidden states."""
    device = hidden_AH.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_AH.dtype


def chunks(num_tokens: int, chunk_tokens: int) -> Iterator[slice]:
    """Yield slices of at most chunk_tokens rows; one empty slice without tokens."""
    for start in range(0, max(1, num_tokens), chunk_tokens):
        yield slice(start, min(start + chunk_tokens, num_tokens))


Reading = TypeVar("Reading")


class ResponseLogits(nn.Module):
    """Language model whose output head runs at chosen positions only.

    The head is about half of the compute of a shallow draft, and prompt tokens contribute no loss: skipping them
    halves the step. Positions are selected, and the head is read, inside this module because FSDP2 gathers embeddings
    and head, which belong to the outermost sharded module, in that module's forward.

    Args:
        packing: Pack the sequences of a batch into fewer rows if that saves FLOPs. Outputs and their order are the
            same, up to the order of floating-point sums.
        multiple: Round the width of packed rows up to a multiple of this.

    Raises:
        UserError: If the attention implementation does not support packing.
    """

    def __init__(self, lm: PreTrainedModel, *, packing: bool = False, multiple: int = 1):
        super().__init__()
        self.lm, self.multiple = lm, multiple
        self.flops_per_token = packed_flops_per_token(lm) if packing else None

    def forward(
        self,
        input_ids_BT: Tensor,
        keep_BT: Tensor,
        read: Callable[[Tensor, Head], Reading],
        position_ids_BT: Tensor | None = None,
        prompt_len_B1: Tensor | None = None,
    ) -> Reading:
        """Return read(hidden_AH, head) for the positions where keep_BT is True, sequence by sequence.

        `read` computes a loss or a metric in chunks, or the logits (`logits_of`). Under FSDP2 the head is freed
        afterwards, so the result must not reference it.

        There is no attention mask: padding is on the right, out of reach of causal attention.

        Args:
            position_ids_BT: Positions within each sequence, if rows hold several: they restart at 0 with each, and
                tokens attend only to their own sequence. None: one sequence per row.
            prompt_len_B1: Prompt tokens of each row, the input of an encoder; unused by decoder-only models.
        """
        return read(self.hidden(input_ids_BT, keep_BT, position_ids_BT, prompt_len_B1), head_of(self.lm))

    def hidden(
        self,
        input_ids_BT: Tensor,
        keep_BT: Tensor,
        position_ids_BT: Tensor | None = None,
        prompt_len_B1: Tensor | None = None,
    ) -> Tensor:
        if self.lm.config.is_encoder_decoder:
            return response_states(self.lm, input_ids_BT, keep_BT, prompt_len_B1)
        layout, width = None, keep_BT.shape[1]
        if self.flops_per_token is not None:
            cost = {"flops_per_token": self.flops_per_token, "multiple": self.multiple}
            layout = cheapest_layout(lengths_read(keep_BT), width, **cost)
        if layout is None:
            return self.last_hidden(input_ids_BT, position_ids_BT)[keep_BT]
        slots_BT = slots_of(layout, width, keep_BT.device)
        if position_ids_BT is None:
            position_ids_BT = torch.arange(width, device=keep_BT.device).expand_as(slots_BT)
        # Unused slots get position 0, so each is a sequence of its own.
        ids_RW, positions_RW = (packed(each_BT, slots_BT, layout) for each_BT in (input_ids_BT, position_ids_BT))
        return self.last_hidden(ids_RW, positions_RW).flatten(0, 1)[slots_BT[keep_BT]]

    def last_hidden(self, input_ids_BT: Tensor, position_ids_BT: Tensor | None) -> Tensor:
        apart = nullcontext() if position_ids_BT is None else texts_apart(self.lm, position_ids_BT)
        with apart:
            states = self.lm.base_model(input_ids=input_ids_BT, position_ids=position_ids_BT, use_cache=False)
        return states.last_hidden_state

    def fsdp_wrap_fn(self, module: nn.Module) -> bool:
        """Return True for transformer blocks: Composer shards each as its own unit."""
        return isinstance(module, GradientCheckpointingLayer)


def response_states(lm: PreTrainedModel, input_ids_BT: Tensor, keep_BT: Tensor, prompt_len_B1: Tensor | None) -> Tensor:
    """Return hidden_AH of an encoder-decoder model at the kept positions of its decoder.

    The decoder's start token takes the position of the last prompt token, and predicts the first response token.

    Raises:
        ValueError: Without prompt lengths.
    """
    if prompt_len_B1 is None:
        raise ValueError("encoder-decoder models need prompt_len in the batch.")
    width = keep_BT.shape[1]
    last = int((keep_BT * torch.arange(1, width + 1, device=keep_BT.device) - prompt_len_B1).max())
    response_len = max(1, last + 1)
    start_id = lm.config.decoder_start_token_id
    read = translation(input_ids_BT, prompt_len_B1, start_id=start_id, response_len=response_len)
    places_BD = response_places(prompt_len_B1, response_len)
    kept_BD = keep_BT.gather(1, places_BD.clamp(max=width - 1)) & (places_BD < width)
    return translated(lm, read)[kept_BD]


def packed_flops_per_token(lm: PreTrainedModel) -> Callable[[int], int]:
    """Return the FLOPs of a model's layers per token by context length; raises UserError as ResponseLogits."""
    where = str(lm.config.name_or_path)
    reject_attention(str(lm.config._attn_implementation), where=where)  # noqa: SLF001  # it has no other name
    shape = Shape.from_config(lm.config.to_dict(), where=where)
    head = head_flops(shape.head_rows, shape.hidden)
    return lambda context: shape.flops_per_token(context) - head


def head_of(lm: PreTrainedModel) -> Head:
    module = lm.get_output_embeddings()
    assert isinstance(module, nn.Linear), "a language model has a linear output head"
    cap = getattr(lm.config, "final_logit_softcapping", None)  # of Gemma
    ids_V, divisor = head_ids(lm), logit_divisor(lm.config)
    return Head(module.weight, module.bias, cap, vocab_size=len(module.weight), ids_V=ids_V, divisor=divisor)


def logit_divisor(config: Any) -> float:
    """Return the number that a model divides its logits by: of Granite; a factor of Cohere and of Falcon-H1."""
    factor = getattr(config, "logit_scale", None) or getattr(config, "lm_head_multiplier", None) or 1.0
    return getattr(config, "logits_scaling", 1.0) / factor


def vocab_size_of(lm: PreTrainedModel) -> int:
    """Return the vocabulary size of a model, also if its head outputs a reduced vocabulary."""
    head = head_of(lm)
    return head.vocab_size if head.ids_V is None else lm.config.get_text_config(decoder=True).vocab_size


def logits_of(hidden_AH: Tensor, head: Head) -> Tensor:
    """`read` of ResponseLogits that returns all logits."""
    return head.logits(hidden_AH)


def rows_of_tokens(ids_K: Tensor, token_ids_X: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows_X, the row of a head that outputs each token, and is_output_X, False for tokens without one.

    Rows of tokens without one are arbitrary but valid.

    Args:
        ids_K: Token id of each row, ascending.
    """
    rows_X = torch.searchsorted(ids_K, token_ids_X.contiguous()).clamp(max=len(ids_K) - 1)
    return rows_X, ids_K[rows_X] == token_ids_X


def learned(batch: Mapping[str, Tensor], ids_K: Tensor | None) -> dict[str, Tensor]:
    """Return a batch for a reduced vocabulary: `next_ids` are head rows, missing tokens move from `keep` to `unsaid`.

    Args:
        ids_K: Token id of each row, ascending; None if row k is token k, and the batch is unchanged.
    """
    if ids_K is None:
        return dict(batch)
    next_BT, keep_BT = batch["next_ids"], batch["keep"]
    rows_BT, is_output_BT = rows_of_tokens(ids_K.to(next_BT.device), next_BT)
    return {**batch, "next_ids": rows_BT, "keep": keep_BT & is_output_BT, "unsaid": keep_BT & ~is_output_BT}


class FrozenRows:
    """Cache of some rows of a frozen head, which every step reads."""

    def __init__(self) -> None:
        self.head: Head | None = None

    def of(self, head: Head, ids_K: Tensor) -> Head:
        """Return the head with the rows of these ids; a head that outputs only those is returned as is."""
        if head.ids_V is not None:
            return head.narrowed(len(ids_K))
        if self.head is None:
            self.head = head.rows_of(ids_K.to(head.weight_VH.device))
        return self.head
