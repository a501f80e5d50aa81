"""Losses against a teacher of whom a cache kept a few entries per token: plain functions of logits, in nats per token.

Shape suffixes used in this file:
    A = answer tokens, one row each; V = vocabulary entries; K = entries kept of the teacher
    O = K + 1 outcomes: the entries kept, and "any other token"; S = tokens drawn from the teacher

Both losses are for temperature 1, at which the cache was written: what a temperature does to a distribution depends on
the entries that were not kept. A cache of hidden states keeps them all (distill/formulas/dense.py serves it). Which
tokens count was decided before, what the losses are divided by is decided after.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def kept_forward_kl(student_logits_AV: Tensor, kept: Mapping[str, Tensor], *, temperature: float = 1.0) -> Tensor:
    """What stands for KL(teacher || student) where a cache kept a few entries: the loss that suits its contents.

    Args:
        student_logits_AV: Any float dtype; computed in float32.
        kept: What `TeacherCache.rows` gives for these A answer tokens: ids_AK, log_probs_AK and log_tail_A of a
            top-k cache, or ids_AS of a cache of samples.
        temperature: Of the loss; 1.

    Returns:
        loss_A of top_k_kl or of sampled_cross_entropy.

    Raises:
        ValueError: If the temperature is another, or the shapes do not belong together.
    """
    if temperature != 1:
        raise ValueError(f"temperature must be 1, at which the cache was written, got {temperature}.")
    if "log_tail" in kept:
        return top_k_kl(student_logits_AV, kept["ids"], kept["log_probs"], kept["log_tail"])
    return sampled_cross_entropy(student_logits_AV, kept["ids"])


def top_k_kl(student_logits_AV: Tensor, ids_AK: Tensor, log_probs_AK: Tensor, log_tail_A: Tensor) -> Tensor:
    """KL(teacher || student) over K + 1 outcomes: each of the K tokens kept, and "any other".

    Grouping outcomes never raises a divergence, so this is at most the full KL, and equal to it where K = V. Neither
    side is normalised over the K tokens alone: a student that moves its mass to other tokens pays for it.
    Source: the log sum inequality, Cover and Thomas 2006, "Elements of Information Theory", sec. 2.7.
    Gradient for the logits: q - p at the K tokens, q (P - Q) / (1 - Q) at the others, with P and Q what teacher and
    student give to the K tokens together.

    Args:
        student_logits_AV: Any float dtype; computed in float32.
        ids_AK: Distinct tokens, int64.
        log_probs_AK: Of the teacher at these tokens.
        log_tail_A: Log of the mass the teacher gives to all other tokens; -inf where K = V.

    Returns:
        loss_A, float32; zero where the K + 1 probabilities agree, and never below zero by more than rounding.
    """
    import torch  # recipes, which name this loss, are read without it

    # One reduction over the vocabulary, of the tokens not kept: their mass is summed, and not taken as the rest of 1,
    # which float32 would round to zero for a sure student.
    logits_AV = student_logits_AV.float()
    lowest = torch.finfo(torch.float32).min  # as a logit: probability 0, but unlike -inf with a gradient that is no NaN
    rest_A = logits_AV.scatter(-1, ids_AK, lowest).logsumexp(dim=-1)
    log_q_AO = torch.cat([logits_AV.gather(-1, ids_AK), rest_A[:, None]], dim=-1).log_softmax(dim=-1)
    # The teacher's K + 1 outcomes are normalised together: a cache rounds them, and their sum is 1 only up to that.
    teacher_AO = torch.cat([log_probs_AK.float(), log_tail_A.float()[:, None]], dim=-1)
    log_p_AO = teacher_AO.detach().log_softmax(dim=-1)
    p_AO = log_p_AO.exp()
    return (p_AO * (log_p_AO - log_q_AO)).where(p_AO > 0, 0.0).sum(dim=-1)  # 0 log 0 = 0


def sampled_cross_entropy(student_logits_AV: Tensor, ids_AS: Tensor) -> Tensor:
    """-Σ t log q, with t the share of each token among S drawn from the teacher: a token drawn twice counts twice.

    Over the draws its mean is the cross-entropy -Σ p log q, and the mean of its gradient q - t is q - p: that of the
    full forward KL. The value is no divergence. Its mean is smallest where student and teacher agree, and is then the
    teacher's entropy, which the draws do not tell; compare values of one cache with each other only.
    Source: Anshumann et al. 2025, "Sparse Logit Sampling: Accelerating Knowledge Distillation in LLMs"
    (arXiv 2503.16870).

    Args:
        student_logits_AV: Any float dtype; computed in float32.
        ids_AS: Tokens drawn, int64.

    Returns:
        loss_A, float32; at least the entropy of the draws themselves.
    """
    logits_AV = student_logits_AV.float()
    return logits_AV.logsumexp(dim=-1) - logits_AV.gather(-1, ids_AS).mean(dim=-1)
