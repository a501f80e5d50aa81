"""Distillation losses: pure functions of logits, summed over answer tokens, in nats.

Shape suffixes used in this file:
    A = answer tokens of all sequences of a batch, one row each; V = vocabulary entries

Which tokens count is decided before (distill/answer_logits.py keeps only their rows); what the sum is divided by is
decided after (distill/model.py).
"""

from torch import Tensor


def forward_kl(student_logits_AV: Tensor, teacher_logits_AV: Tensor, *, temperature: float = 1.0) -> Tensor:
    """KL(teacher || student), summed over answer tokens.

    Source: Hinton et al. 2015, "Distilling the Knowledge in a Neural Network", sec. 2 (arXiv 1503.02531).
    Scaled by temperature**2, as there, so gradients keep their size.

    Args:
        student_logits_AV: Any float dtype; computed in float32.
        teacher_logits_AV: Same shape. No gradient flows to it.
        temperature: Divides both logits. Dimensionless, > 0.

    Returns:
        Scalar float32, in nats. Zero when the distributions agree or there is no row.

    Raises:
        ValueError: If the shapes differ.
    """
    if student_logits_AV.shape != teacher_logits_AV.shape:
        raise ValueError(
            "student and teacher logits must have one shape [answer tokens, vocab], got "
            f"{tuple(student_logits_AV.shape)} and {tuple(teacher_logits_AV.shape)}. "
            "A student pruned from this teacher keeps its vocabulary; check vocab_size in both config.json."
        )
    student_logp_AV = (student_logits_AV.float() / temperature).log_softmax(dim=-1)
    teacher_logp_AV = (teacher_logits_AV.detach().float() / temperature).log_softmax(dim=-1)
    return temperature**2 * (teacher_logp_AV.exp() * (teacher_logp_AV - student_logp_AV)).sum()
