"""Distillation losses: pure functions of logits, one value per answer token, in nats.

p is the teacher's distribution, q the student's, both at the temperature. Logits may be of any float dtype and must be
finite; everything is computed in float32, from log-probabilities, so that a probability that underflows costs nothing
and leaves every gradient finite. No gradient flows to the teacher. Each loss is zero where p = q unless it says
otherwise, and never negative beyond rounding.

The divergences are scaled by temperature**2 so that gradients keep their size (Hinton et al. 2015, "Distilling the
Knowledge in a Neural Network", sec. 2, arXiv 1503.02531). The losses of acceptance are not: they are chances at that
temperature.

Which tokens count is decided before (distill/chunked_loss.py keeps only their rows); what the sum is divided by
is decided after (distill/model.py). Options have no default here: distill/losses.py has it, and reads
this file without torch.

Both losses are for temperature 1, at which the cache was written: what a temperature does to a distribution depends on
the entries that were not kept. A cache of hidden states keeps them all (distill/loss_formulas.py serves it). Which
tokens count was decided before, what the losses are divided by is decided after.

Shape suffixes used in this file:
    A = answer tokens of all sequences of a batch, one row each
    V = vocabulary entries
    K = entries kept of the teacher
    O = K + 1 outcomes: the entries kept, and "any other token"
    S = tokens drawn from the teacher
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def forward_kl(student_logits_AV: Tensor, teacher_logits_AV: Tensor, *, temperature: float = 1.0) -> Tensor:
    """KL(teacher || student): the student must cover everything the teacher might say.

    Source: Hinton et al. 2015, "Distilling the Knowledge in a Neural Network", sec. 2 (arXiv 1503.02531).

    Args:
        student_logits_AV: Any float dtype.
        teacher_logits_AV: Same shape.
        temperature: Divides both logits. Dimensionless, > 0.

    Returns:
        loss_A, float32, times temperature**2.

    Raises:
        ValueError: If the shapes differ.
    """
    student_logp_AV, teacher_logp_AV = log_probabilities(student_logits_AV, teacher_logits_AV, temperature)
    return temperature**2 * divergence(teacher_logp_AV, student_logp_AV)


def reverse_kl(student_logits_AV: Tensor, teacher_logits_AV: Tensor, *, temperature: float = 1.0) -> Tensor:
    """KL(student || teacher): the student must not say what the teacher would not.

    Source: Gu et al. 2024, "MiniLLM: Knowledge Distillation of Large Language Models", sec. 2.1 (arXiv 2306.08543).
    Arguments, result and errors as of forward_kl.
    """
    student_logp_AV, teacher_logp_AV = log_probabilities(student_logits_AV, teacher_logits_AV, temperature)
    return temperature**2 * divergence(student_logp_AV, teacher_logp_AV)


def kl_mixture(
    student_logits_AV: Tensor, teacher_logits_AV: Tensor, *, temperature: float = 1.0, forward_weight: float
) -> Tensor:
    """Forward KL with weight w plus reverse KL with 1 - w: what OSD's code calls "jsd", which it is not.

    Source: code of Liu et al. 2023, "Online Speculative Decoding" (arXiv 2310.07177).
    Arguments, result and errors as of forward_kl; forward_weight w is in (0, 1).
    """
    student_logp_AV, teacher_logp_AV = log_probabilities(student_logits_AV, teacher_logits_AV, temperature)
    forward_A = divergence(teacher_logp_AV, student_logp_AV)
    reverse_A = divergence(student_logp_AV, teacher_logp_AV)
    return temperature**2 * (forward_weight * forward_A + (1 - forward_weight) * reverse_A)


def jensen_shannon(
    student_logits_AV: Tensor, teacher_logits_AV: Tensor, *, temperature: float = 1.0, beta: float
) -> Tensor:
    """Generalised Jensen-Shannon divergence: beta KL(p || m) + (1 - beta) KL(q || m), with m = beta p + (1 - beta) q.

    Bounded by the entropy of (beta, 1 - beta), log 2 at 0.5.
    Source: Agarwal et al. 2024, "On-Policy Distillation of Language Models", sec. 2 (arXiv 2306.13649).
    Arguments, result and errors as of forward_kl; beta is in (0, 1).
    """
    student_logp_AV, teacher_logp_AV = log_probabilities(student_logits_AV, teacher_logits_AV, temperature)
    mixture_logp_AV = mixture(teacher_logp_AV, student_logp_AV, share=beta)
    teacher_A, student_A = (divergence(each, mixture_logp_AV) for each in (teacher_logp_AV, student_logp_AV))
    return temperature**2 * (beta * teacher_A + (1 - beta) * student_A)


def skewed_forward_kl(
    student_logits_AV: Tensor, teacher_logits_AV: Tensor, *, temperature: float = 1.0, skew: float
) -> Tensor:
    """KL(p || skew p + (1 - skew) q): the forward KL with its large gradients bounded; at most -log(skew).

    Source: Ko et al. 2024, "DistiLLM: Towards Streamlined Distillation for Large Language Models", sec. 3.1
    (arXiv 2402.03898).
    Arguments, result and errors as of forward_kl; skew is in (0, 1).
    """
    student_logp_AV, teacher_logp_AV = log_probabilities(student_logits_AV, teacher_logits_AV, temperature)
    return temperature**2 * divergence(teacher_logp_AV, mixture(teacher_logp_AV, student_logp_AV, share=skew))


def skewed_reverse_kl(
    student_logits_AV: Tensor, teacher_logits_AV: Tensor, *, temperature: float = 1.0, skew: float
) -> Tensor:
    """KL(q || skew q + (1 - skew) p): the reverse KL, at most -log(skew).

    Source: Ko et al. 2024, as skewed_forward_kl, sec. 3.1.
    Arguments, result and errors as of forward_kl; skew is in (0, 1).
    """
    student_logp_AV, teacher_logp_AV = log_probabilities(student_logits_AV, teacher_logits_AV, temperature)
    return temperature**2 * divergence(student_logp_AV, mixture(student_logp_AV, teacher_logp_AV, share=skew))


def total_variation(student_logits_AV: Tensor, teacher_logits_AV: Tensor, *, temperature: float = 1.0) -> Tensor:
    """1 - alpha: the chance that rejection sampling throws the student's token away. In [0, 1], not in nats.

    Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", corollary 3.6
    (arXiv 2211.17192).
    Arguments and errors as of forward_kl; not scaled by the temperature.
    """
    student_logp_AV, teacher_logp_AV = log_probabilities(student_logits_AV, teacher_logits_AV, temperature)
    return (teacher_logp_AV.exp() - student_logp_AV.exp()).relu().sum(dim=-1)


def negative_log_acceptance(
    student_logits_AV: Tensor, teacher_logits_AV: Tensor, *, temperature: float = 1.0
) -> Tensor:
    """-log alpha: total variation's gradient over alpha, so that tokens far from acceptance still learn.

    Source: "LK losses" (arXiv 2602.23881); of each token's alpha here, not of a batch's mean, so that the gradient of a
    batch does not depend on how it is split.
    Arguments and errors as of forward_kl; not scaled by the temperature.
    """
    student_logp_AV, teacher_logp_AV = log_probabilities(student_logits_AV, teacher_logits_AV, temperature)
    return -student_logp_AV.minimum(teacher_logp_AV).logsumexp(dim=-1)


def lk_hybrid(
    student_logits_AV: Tensor, teacher_logits_AV: Tensor, *, temperature: float = 1.0, decay: float
) -> Tensor:
    """KL(teacher || student) while far, 1 - alpha when near: w KL + (1 - w)(1 - alpha), with w = exp(-decay alpha).

    No gradient flows through w.
    Source: "LK losses" (arXiv 2602.23881); w of each token's own alpha, as in negative_log_acceptance.
    Arguments and errors as of forward_kl; decay > 0; not scaled by the temperature.
    """
    student_logp_AV, teacher_logp_AV = log_probabilities(student_logits_AV, teacher_logits_AV, temperature)
    rejected_A = (teacher_logp_AV.exp() - student_logp_AV.exp()).relu().sum(dim=-1)
    weight_A = (-decay * (1 - rejected_A.detach())).exp()
    return weight_A * divergence(teacher_logp_AV, student_logp_AV) + (1 - weight_A) * rejected_A


def cross_entropy(student_logits_AV: Tensor, token_ids_A: Tensor) -> Tensor:
    """-log q of the tokens that were written, at temperature 1. Its least mean is the entropy of the text.

    Args:
        student_logits_AV: Any float dtype.
        token_ids_A: The token that followed, in [0, V).

    Returns:
        loss_A, float32.
    """
    return -student_logits_AV.float().log_softmax(dim=-1).gather(-1, token_ids_A[:, None]).squeeze(-1)


def log_probabilities(
    student_logits_AV: Tensor, teacher_logits_AV: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Student's and teacher's log-probabilities at a temperature, float32; the teacher's without gradient."""
    if student_logits_AV.shape != teacher_logits_AV.shape:
        raise ValueError(
            "student and teacher logits must have one shape [answer tokens, vocab], got "
            f"{tuple(student_logits_AV.shape)} and {tuple(teacher_logits_AV.shape)}. "
            "A student pruned from this teacher keeps its vocabulary; check vocab_size in both config.json."
        )
    student_AV, teacher_AV = student_logits_AV.float(), teacher_logits_AV.detach().float()
    if temperature != 1.0:  # dividing by 1 costs two copies
        student_AV, teacher_AV = student_AV / temperature, teacher_AV / temperature
    return student_AV.log_softmax(dim=-1), teacher_AV.log_softmax(dim=-1)


def divergence(of_logp_AV: Tensor, from_logp_AV: Tensor) -> Tensor:
    """kl_A = KL(of || from)."""
    return (of_logp_AV.exp() * (of_logp_AV - from_logp_AV)).sum(dim=-1)


def mixture(first_logp_AV: Tensor, second_logp_AV: Tensor, *, share: float) -> Tensor:
    """Log-probabilities of share * one + (1 - share) * other."""
    return (first_logp_AV + log(share)).logaddexp(second_logp_AV + log(1 - share))


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
