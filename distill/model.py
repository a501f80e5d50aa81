"""The student beside its teacher, as Composer's trainer wants a model.

Shape suffixes used in this file:
    A = positions that predict an answer token, of all sequences of a batch; V = vocabulary entries
"""

from collections.abc import Mapping
from typing import Any

import torch
from composer.models import ComposerModel
from torch import Tensor
from torchmetrics import Metric

from distill.answer_logits import AnswerLogits
from distill.losses import forward_kl
from distill.metrics import eval_metrics
from distill.teacher import Teacher

Batch = Mapping[str, Tensor]


class DistillModel(ComposerModel):
    """Learns the teacher's distribution at every token of its answers.

    `student` is the only submodule, so it alone is trained, wrapped and saved. Outputs are the pair
    (student_logits_AV, teacher_logits_AV).

    Args:
        student: Trained.
        teacher: Asked. On the device the student trains on.
        temperature: Of the loss; dimensionless.
        cpu_bfloat16: Run the student's matrix products in bfloat16 on a processor. Composer does this on GPUs itself
            (`amp_bf16`) and refuses to elsewhere.
    """

    def __init__(self, student: AnswerLogits, teacher: Teacher, *, temperature: float, cpu_bfloat16: bool):
        super().__init__()
        self.student = student
        self.teacher = teacher
        self.temperature = temperature
        self.cpu_bfloat16 = cpu_bfloat16

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits of both at the answer's positions."""
        teacher_logits_AV = self.teacher.logits(batch["input_ids"], batch["keep"])
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.cpu_bfloat16):
            student_logits_AV = self.student(batch["input_ids"], batch["keep"])
        return student_logits_AV, teacher_logits_AV

    def loss(self, outputs: tuple[Tensor, Tensor], batch: Batch) -> Tensor:  # noqa: ARG002  # Composer's signature
        """Mean over the answer tokens of the batch, nats per token. The one place where a loss is normalised.

        The trainer weighs micro-batches and ranks by their answer tokens, so how a batch is split does not matter.
        """
        student_logits_AV, teacher_logits_AV = outputs
        loss_sum = forward_kl(student_logits_AV, teacher_logits_AV, temperature=self.temperature).sum()
        return loss_sum / max(1, len(student_logits_AV))

    def eval_forward(self, batch: Batch, outputs: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """What forward returns, computed unless it is at hand."""
        return self.forward(batch) if outputs is None else outputs

    def get_metrics(self, is_train: bool = False) -> dict[str, Metric]:  # noqa: FBT001, FBT002  # Composer's signature
        """Metrics of held-out answers; none while training, where the loss says enough."""
        return {} if is_train else eval_metrics()

    def update_metric(self, batch: Any, outputs: tuple[Tensor, Tensor], metric: Metric) -> None:  # noqa: ARG002
        """Count the outputs of one batch."""
        metric.update(*outputs)
