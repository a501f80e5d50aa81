"""Losses a recipe may name: formulas, and a table with their options and what each needs of the teacher.

A new loss needs a formula, a row of the table, and a row in docs/train.md. Torch is only imported by formulas that call
it, so recipes are checked without it.

p is the teacher's distribution, q the student's, both at the temperature. Logits may have any float dtype and must be
finite; everything is computed in float32 from log-probabilities, so a probability that underflows leaves every
gradient finite. No gradient flows to the teacher. Losses are float32, and unless stated otherwise zero at p = q and
never negative beyond rounding.

The losses of student and teacher logits take the arguments of `forward_kl` and raise the same errors. Divergences are
scaled by temperature**2 so that gradients keep their size (Hinton et al. 2015, sec. 2). `total_variation`,
`negative_log_acceptance` and `lk_hybrid` are not: acceptance is a probability at that temperature.

Masking happens before (distill/chunked_loss.py passes only the rows that count), normalisation after
(distill/model.py).

The losses of cached entries, `top_k_kl` and `sampled_cross_entropy`, require temperature 1, at which the cache was
written: the effect of a temperature depends on the entries that were dropped. A cache of hidden states keeps them all
and supports every loss.

Shape suffixes used in this file:
    C = some response tokens, one row each
    V = vocabulary entries
    A = response tokens of all sequences of a batch, one row each
    K = cached entries of the teacher
    O = K + 1 outcomes: the cached entries, and "any other token"
    S = tokens sampled from the teacher
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from math import log
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field, ValidationInfo, field_validator

from architectures.settings import Section

if TYPE_CHECKING:
    from torch import Tensor

    # Output of a teacher for some rows: logits_CV, or the entries of each row that a cache kept.
    TeacherOutput: TypeAlias = Tensor | Mapping[str, Tensor]


def forward_kl(student_logits_AV: Tensor, teacher_logits_AV: Tensor, *, temperature: float = 1.0) -> Tensor:
    """KL(teacher || student): mode-covering, the student must cover all of the teacher's mass.

    Source: Hinton et al. 2015, "Distilling the Knowledge in a Neural Network", sec. 2 (arXiv 1503.02531).

    Args:
        temperature: Divides both logits, > 0. The loss is multiplied by its square.

    Raises:
        ValueError: If the shapes differ.
    """
    student_logp_AV, teacher_logp_AV = log_probabilities(student_logits_AV, teacher_logits_AV, temperature)
    return temperature**2 * divergence(teacher_logp_AV, student_logp_AV)


def reverse_kl(student_logits_AV: Tensor, teacher_logits_AV: Tensor, *, temperature: float = 1.0) -> Tensor:
    """KL(student || teacher): mode-seeking, penalises tokens that are unlikely under the teacher.

    Source: Gu et al. 2024, "MiniLLM: Knowledge Distillation of Large Language Models", sec. 2.1 (arXiv 2306.08543).
    """
    student_logp_AV, teacher_logp_AV = log_probabilities(student_logits_AV, teacher_logits_AV, temperature)
    return temperature**2 * divergence(student_logp_AV, teacher_logp_AV)


def kl_mixture(
    student_logits_AV: Tensor, teacher_logits_AV: Tensor, *, temperature: float = 1.0, forward_weight: float
) -> Tensor:
    """Forward KL with weight w = forward_weight in (0, 1), plus reverse KL with 1 - w.

    Source: code of Liu et al. 2023, "Online Speculative Decoding" (arXiv 2310.07177), which calls it "jsd", wrongly.
    """
    student_logp_AV, teacher_logp_AV = log_probabilities(student_logits_AV, teacher_logits_AV, temperature)
    forward_A = divergence(teacher_logp_AV, student_logp_AV)
    reverse_A = divergence(student_logp_AV, teacher_logp_AV)
    return temperature**2 * (forward_weight * forward_A + (1 - forward_weight) * reverse_A)


def jensen_shannon(
    student_logits_AV: Tensor, teacher_logits_AV: Tensor, *, temperature: float = 1.0, beta: float
) -> Tensor:
    """Generalised Jensen-Shannon divergence: beta KL(p || m) + (1 - beta) KL(q || m), with m = beta p + (1 - beta) q.

    With beta in (0, 1); bounded by the entropy of (beta, 1 - beta), log 2 at 0.5.
    Source: Agarwal et al. 2024, "On-Policy Distillation of Language Models", sec. 2 (arXiv 2306.13649).
    """
    student_logp_AV, teacher_logp_AV = log_probabilities(student_logits_AV, teacher_logits_AV, temperature)
    mixture_logp_AV = mixture(teacher_logp_AV, student_logp_AV, share=beta)
    teacher_A, student_A = (divergence(each, mixture_logp_AV) for each in (teacher_logp_AV, student_logp_AV))
    return temperature**2 * (beta * teacher_A + (1 - beta) * student_A)


def skewed_forward_kl(
    student_logits_AV: Tensor, teacher_logits_AV: Tensor, *, temperature: float = 1.0, skew: float
) -> Tensor:
    """KL(p || skew p + (1 - skew) q), skew in (0, 1): the forward KL with bounded gradients; at most -log(skew).

    Source: Ko et al. 2024, "DistiLLM", sec. 3.1 (arXiv 2402.03898).
    """
    student_logp_AV, teacher_logp_AV = log_probabilities(student_logits_AV, teacher_logits_AV, temperature)
    return temperature**2 * divergence(teacher_logp_AV, mixture(teacher_logp_AV, student_logp_AV, share=skew))


def skewed_reverse_kl(
    student_logits_AV: Tensor, teacher_logits_AV: Tensor, *, temperature: float = 1.0, skew: float
) -> Tensor:
    """KL(q || skew q + (1 - skew) p), skew in (0, 1): the reverse KL, at most -log(skew).

    Source: as skewed_forward_kl.
    """
    student_logp_AV, teacher_logp_AV = log_probabilities(student_logits_AV, teacher_logits_AV, temperature)
    return temperature**2 * divergence(student_logp_AV, mixture(student_logp_AV, teacher_logp_AV, share=skew))


def total_variation(student_logits_AV: Tensor, teacher_logits_AV: Tensor, *, temperature: float = 1.0) -> Tensor:
    """1 - alpha: the probability that rejection sampling rejects the student's token. In [0, 1], not in nats.

    Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", corollary 3.6
    (arXiv 2211.17192).
    """
    student_logp_AV, teacher_logp_AV = log_probabilities(student_logits_AV, teacher_logits_AV, temperature)
    return (teacher_logp_AV.exp() - student_logp_AV.exp()).relu().sum(dim=-1)


def negative_log_acceptance(
    student_logits_AV: Tensor, teacher_logits_AV: Tensor, *, temperature: float = 1.0
) -> Tensor:
    """-log alpha: its gradient is total variation's divided by alpha, so tokens with low acceptance still learn.

    Source: "LK losses" (arXiv 2602.23881); here of each token's alpha, not of a batch mean, so the gradient of a batch
    does not depend on how it is split.
    """
    student_logp_AV, teacher_logp_AV = log_probabilities(student_logits_AV, teacher_logits_AV, temperature)
    return -student_logp_AV.minimum(teacher_logp_AV).logsumexp(dim=-1)


def lk_hybrid(
    student_logits_AV: Tensor, teacher_logits_AV: Tensor, *, temperature: float = 1.0, decay: float
) -> Tensor:
    """KL(p || q) at low acceptance, 1 - alpha at high: w KL + (1 - w)(1 - alpha), with w = exp(-decay alpha).

    No gradient flows through w; decay > 0.
    Source: "LK losses" (arXiv 2602.23881); w of each token's own alpha, as in negative_log_acceptance.
    """
    student_logp_AV, teacher_logp_AV = log_probabilities(student_logits_AV, teacher_logits_AV, temperature)
    rejected_A = (teacher_logp_AV.exp() - student_logp_AV.exp()).relu().sum(dim=-1)
    weight_A = (-decay * (1 - rejected_A.detach())).exp()
    return weight_A * divergence(teacher_logp_AV, student_logp_AV) + (1 - weight_A) * rejected_A


def cross_entropy(student_logits_AV: Tensor, token_ids_A: Tensor) -> Tensor:
    """-log q of the next tokens token_ids_A, at temperature 1. The minimum of its mean is the entropy of the text."""
    return -student_logits_AV.float().log_softmax(dim=-1).gather(-1, token_ids_A[:, None]).squeeze(-1)


def log_probabilities(
    student_logits_AV: Tensor, teacher_logits_AV: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of student and teacher at a temperature, float32; the teacher's detached."""
    if student_logits_AV.shape != teacher_logits_AV.shape:
        raise ValueError(
            "student and teacher logits must have one shape [tokens, vocab], got "
            f"{tuple(student_logits_AV.shape)} and {tuple(teacher_logits_AV.shape)}. "
            "A student pruned from this teacher keeps its vocabulary; check vocab_size in both config.json."
        )
    student_AV, teacher_AV = student_logits_AV.float(), teacher_logits_AV.detach().float()
    if temperature != 1.0:  # dividing by 1 costs two copies
        student_AV, teacher_AV = student_AV / temperature, teacher_AV / temperature
    return student_AV.log_softmax(dim=-1), teacher_AV.log_softmax(dim=-1)


def divergence(of_logp_AV: Tensor, from_logp_AV: Tensor) -> Tensor:
    """Return kl_A = KL(of || from)."""
    return (of_logp_AV.exp() * (of_logp_AV - from_logp_AV)).sum(dim=-1)


def mixture(first_logp_AV: Tensor, second_logp_AV: Tensor, *, share: float) -> Tensor:
    """Return the log-probabilities of share * first + (1 - share) * second."""
    return (first_logp_AV + log(share)).logaddexp(second_logp_AV + log(1 - share))


def kept_forward_kl(student_logits_AV: Tensor, kept: Mapping[str, Tensor], *, temperature: float = 1.0) -> Tensor:
    """Compute the forward KL from cached entries: `top_k_kl` or `sampled_cross_entropy`, by the contents of the cache.

    Args:
        kept: Result of `TeacherCache.rows` for these A tokens: ids_AK, log_probs_AK and log_tail_A of a top-k cache,
            or ids_AS of a cache of samples.
        temperature: Must be 1, else raises ValueError.
    """
    if temperature != 1:
        raise ValueError(f"temperature must be 1, at which the cache was written, got {temperature}.")
    if "log_tail" in kept:
        return top_k_kl(student_logits_AV, kept["ids"], kept["log_probs"], kept["log_tail"])
    return sampled_cross_entropy(student_logits_AV, kept["ids"])


def top_k_kl(student_logits_AV: Tensor, ids_AK: Tensor, log_probs_AK: Tensor, log_tail_A: Tensor) -> Tensor:
    """KL(teacher || student) over K + 1 outcomes: each of the K cached tokens, and "any other".

    Grouping outcomes never raises a divergence, so this is at most the full KL, and equal to it if K = V. Neither side
    is normalised over the K tokens only: a student that moves its mass to other tokens pays for it.
    Source: the log sum inequality, Cover and Thomas 2006, "Elements of Information Theory", sec. 2.7.
    Gradient with respect to the logits: q - p at the K tokens, q (P - Q) / (1 - Q) at all other tokens, with P and Q
    the total mass of the K tokens under teacher and student.

    Args:
        ids_AK: Distinct tokens, int64.
        log_probs_AK: Of the teacher at these tokens.
        log_tail_A: Log of the teacher's mass on all other tokens; -inf if K = V.
    """
    import torch  # imported here, since recipes, which name this loss, are read without torch

    # One reduction over the tokens outside the cache: their mass is summed rather than computed as 1 - Q, which
    # float32 would round to zero for a confident student.
    logits_AV = student_logits_AV.float()
    lowest = torch.finfo(torch.float32).min  # as a logit: probability 0, but unlike -inf without a NaN gradient
    rest_A = logits_AV.scatter(-1, ids_AK, lowest).logsumexp(dim=-1)
    log_q_AO = torch.cat([logits_AV.gather(-1, ids_AK), rest_A[:, None]], dim=-1).log_softmax(dim=-1)
    # The teacher's K + 1 outcomes are normalised together: a cache rounds them, so their sum is only close to 1.
    teacher_AO = torch.cat([log_probs_AK.float(), log_tail_A.float()[:, None]], dim=-1)
    log_p_AO = teacher_AO.detach().log_softmax(dim=-1)
    p_AO = log_p_AO.exp()
    return (p_AO * (log_p_AO - log_q_AO)).where(p_AO > 0, 0.0).sum(dim=-1)  # 0 log 0 = 0


def sampled_cross_entropy(student_logits_AV: Tensor, ids_AS: Tensor) -> Tensor:
    """-Σ t log q, with t the empirical distribution of S teacher samples ids_AS: a token drawn twice counts twice.

    Its expectation over the samples is the cross-entropy -Σ p log q, and that of its gradient q - t is q - p, the
    gradient of the full forward KL. The value is no divergence: its minimum is the entropy of the samples, and in
    expectation that of the teacher, which the samples do not determine. Compare values of one cache only.
    Source: Anshumann et al. 2025, "Sparse Logit Sampling: Accelerating Knowledge Distillation in LLMs"
    (arXiv 2503.16870).
    """
    logits_AV = student_logits_AV.float()
    return logits_AV.logsumexp(dim=-1) - logits_AV.gather(-1, ids_AS).mean(dim=-1)


# Logits entries of a chunk of a loss. 2**23 of them, with their probabilities and gradients, are 200 MB. With 2**24
# the peak at 8,192 tokens from 32,000 entries was 0.136 of the plain path's, above the limit of 1/8; time is the same
# (benchmarks/loss.py).
CHUNK_ENTRIES = 2**23
MIN_CHUNK_TOKENS = 256  # below, each pass over the head's weight and its gradient serves too few tokens
GPU_CHUNKS = 4  # chunk multiple on GPUs: on an H200 8,192 tokens took 25 ms from 32,000 entries, and 40.5 with 1
OpenFraction = Annotated[float, Field(gt=0, lt=1)]
Formula: TypeAlias = Callable[..., "Tensor"]


class Knowledge(IntEnum):
    """Information about the teacher at a response token."""

    TOKENS = 0  # only the response's own token: no teacher is needed
    ENTRIES = 1  # some entries of its distribution, as in a cache of top_k or samples
    LOGITS = 2  # the full distribution


@dataclass(frozen=True)
class TokenLoss:
    """Loss per response token.

    Attributes:
        formulas: By the knowledge they use. They take the student's logits, then token ids (TOKENS) or the teacher's
            output with `temperature` and the loss's parameters by keyword.
        parameters: Defaults by name.
    """

    formulas: Mapping[Knowledge, Formula]
    parameters: Mapping[str, float] = field(default_factory=dict)

    @property
    def needs(self) -> Knowledge:
        """Minimum knowledge to compute it."""
        return min(self.formulas)


# p is the teacher's distribution, q the student's, alpha the sum of min(p, q).
LOSSES = {
    # KL(p || q)
    "forward_kl": TokenLoss({Knowledge.LOGITS: forward_kl, Knowledge.ENTRIES: kept_forward_kl}),
    # KL(q || p)
    "reverse_kl": TokenLoss({Knowledge.LOGITS: reverse_kl}),
    # w KL(p || q) + (1 - w) KL(q || p), with w = forward_weight
    "kl_mixture": TokenLoss({Knowledge.LOGITS: kl_mixture}, {"forward_weight": 0.9}),
    # beta KL(p || m) + (1 - beta) KL(q || m), with m = beta p + (1 - beta) q
    "jensen_shannon": TokenLoss({Knowledge.LOGITS: jensen_shannon}, {"beta": 0.5}),
    # KL(p || skew p + (1 - skew) q)
    "skewed_forward_kl": TokenLoss({Knowledge.LOGITS: skewed_forward_kl}, {"skew": 0.1}),
    # KL(q || skew q + (1 - skew) p)
    "skewed_reverse_kl": TokenLoss({Knowledge.LOGITS: skewed_reverse_kl}, {"skew": 0.1}),
    # 1 - alpha: a probability, not nats
    "total_variation": TokenLoss({Knowledge.LOGITS: total_variation}),
    # -log alpha
    "negative_log_acceptance": TokenLoss({Knowledge.LOGITS: negative_log_acceptance}),
    # w KL(p || q) + (1 - w) (1 - alpha), with w = exp(-decay alpha)
    "lk_hybrid": TokenLoss({Knowledge.LOGITS: lk_hybrid}, {"decay": 3.0}),
    # -log q of the next token: no teacher is needed
    "cross_entropy": TokenLoss({Knowledge.TOKENS: cross_entropy}),
}
# Default loss of a recipe: the first that its teacher supports, in order of quality (docs/benchmarks.md).
PREFERRED = ("negative_log_acceptance", "forward_kl", "cross_entropy")

if TYPE_CHECKING:
    LossName: TypeAlias = str
else:
    LossName = Literal[tuple(LOSSES)]


class LossTerm(Section):
    """One loss of a weighted sum, in nats per response token. A parameter is null in losses that have none."""

    name: LossName = Field(description="A loss of docs/train.md.")
    weight: float = Field(default=1.0, gt=0, description="Weight in the sum.")
    forward_weight: OpenFraction | None = Field(
        default=None, description="Weight of the forward KL in kl_mixture; null is 0.9."
    )
    beta: OpenFraction | None = Field(
        default=None, description="Weight of the teacher in the mixture of jensen_shannon; null is 0.5."
    )
    skew: OpenFraction | None = Field(
        default=None,
        description="Weight of the first distribution in the mixture of a skewed KL; null is 0.1.",
    )
    decay: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Decay of the KL weight with the acceptance rate in lk_hybrid; null is 3."
    )

    @field_validator("forward_weight", "beta", "skew", "decay")
    @classmethod
    def _of_this_loss(cls, value: float | None, info: ValidationInfo) -> float | None:
        name = info.data.get("name")
        if value is not None and name is not None and info.field_name not in LOSSES[name].parameters:
            raise ValueError(f"must not be set with {name}, got {value}: that loss has no {info.field_name}.")
        return value

    @property
    def loss(self) -> TokenLoss:
        return LOSSES[self.name]

    @property
    def parameters(self) -> dict[str, float]:
        """Parameters of the loss, defaults included."""
        given = {name: getattr(self, name) for name in self.loss.parameters}
        return {name: self.loss.parameters[name] if value is None else value for name, value in given.items()}


Loss: TypeAlias = LossName | Annotated[list[LossTerm], Field(min_length=1)]


def loss_terms(loss: str | Sequence[LossTerm]) -> tuple[LossTerm, ...]:
    return (LossTerm(name=loss),) if isinstance(loss, str) else tuple(loss)


@dataclass(frozen=True)
class Objective:
    """Weighted sum of token losses; cross_entropy ignores the temperature."""

    terms: tuple[LossTerm, ...]
    temperature: float

    @property
    def needs_teacher(self) -> bool:
        """True if any term compares with the teacher."""
        return any(term.loss.needs > Knowledge.TOKENS for term in self.terms)

    def __call__(self, student_CV: Tensor, teacher: TeacherOutput | None, token_ids_C: Tensor) -> Tensor:
        """Compute loss_C, float32; the teacher's output may be None if `needs_teacher` is False."""
        first, *others = (term.weight * self.of_term(term, student_CV, teacher, token_ids_C) for term in self.terms)
        return sum(others, start=first)

    def of_term(self, term: LossTerm, student_CV: Tensor, teacher: TeacherOutput | None, token_ids_C: Tensor) -> Tensor:
        if term.loss.needs is Knowledge.TOKENS:
            return term.loss.formulas[Knowledge.TOKENS](student_CV, token_ids_C)
        knowledge = Knowledge.ENTRIES if isinstance(teacher, Mapping) else Knowledge.LOGITS
        return term.loss.formulas[knowledge](student_CV, teacher, temperature=self.temperature, **term.parameters)


def build_objective(loss: str | Sequence[LossTerm], *, temperature: float) -> Objective:
    return Objective(loss_terms(loss), temperature)


def chunk_size(vocab_size: int) -> int:
    """Return the tokens per chunk on a CPU; a GPU uses GPU_CHUNKS times this."""
    return max(MIN_CHUNK_TOKENS, CHUNK_ENTRIES // vocab_size)
