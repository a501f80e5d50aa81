"""How often the target would accept what the draft proposes, measured on held-out answers while training.

Shape suffixes used in this file:
    A = answer tokens of all sequences of a batch, V = vocabulary entries, M = metrics

Both are teacher-forced: at each token of an answer the target wrote, given the target's own text before it.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torchmetrics import Metric


def expected_acceptance(student_logits_AV: Tensor, teacher_logits_AV: Tensor) -> Tensor:
    """Chance that a token drawn from the student is accepted by rejection sampling, at temperature 1.

    alpha = sum_x min(p(x), q(x)), with p the teacher's distribution and q the student's.
    Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", corollary 3.6
    (arXiv 2211.17192).

    Returns:
        alpha_A, float32, in [0, 1].
    """
    student_p_AV = student_logits_AV.float().softmax(dim=-1)
    teacher_p_AV = teacher_logits_AV.float().softmax(dim=-1)
    return torch.minimum(student_p_AV, teacher_p_AV).sum(dim=-1)


def greedy_match(student_logits_AV: Tensor, teacher_logits_AV: Tensor) -> Tensor:
    """1.0 where student and teacher have the same most likely token, else 0.0; match_A, float32."""
    return (student_logits_AV.argmax(dim=-1) == teacher_logits_AV.argmax(dim=-1)).float()


PER_TOKEN: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "alpha": expected_acceptance,
    "greedy_match": greedy_match,
}


def metrics_of_rows(student_logits_AV: Tensor, teacher_logits_AV: Tensor) -> Tensor:
    """Every metric of every token: values_AM, one column for each name of eval_metrics, in its order."""
    return torch.stack([metric(student_logits_AV, teacher_logits_AV) for metric in PER_TOKEN.values()], dim=1)


class AnswerTokenMean(Metric):
    """The mean of a per-token quantity over every answer token of all batches and ranks.

    Args:
        name: Of the quantity, among those a batch is measured by.
    """

    full_state_update = False
    total: Tensor
    num_tokens: Tensor

    def __init__(self, name: str):
        super().__init__()
        self.quantity = name
        self.add_state("total", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("num_tokens", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, values: Mapping[str, Tensor]) -> None:
        """Count one batch: values_A of every quantity by name."""
        values_A = values[self.quantity]
        self.total += values_A.sum(dtype=torch.float64)
        self.num_tokens += values_A.numel()

    def compute(self) -> Tensor:
        """The mean so far, float64."""
        return self.total / self.num_tokens


def eval_metrics() -> dict[str, AnswerTokenMean]:
    """The metrics of a held-out evaluation, under the names they are logged as after "metrics/eval/"."""
    return {name: AnswerTokenMean(name) for name in PER_TOKEN}
