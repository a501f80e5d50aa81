"""A target that learns to do with less: its weights and its masks are trained together, beside the target as it was.

Shape suffixes used in this file:
    B = sequences in the batch, T = tokens per sequence, V = vocabulary entries, H = channels
    A = positions that predict a token of the text, of all sequences of a batch; C = some of these
"""

from collections.abc import Mapping
from functools import partial

import torch
from composer.models import ComposerModel
from torch import Tensor

from architectures.masks.gating import masked
from architectures.masks.masks import Masks
from architectures.shapes.section import MasksConfig
from distill.formulas.dense import cross_entropy, forward_kl
from distill.losses.answer_logits import AnswerLogits, vocab_size_of
from distill.losses.chunked import Head, sum_of_rows
from distill.teacher import Teacher, TeacherRows

Batch = Mapping[str, Tensor]


class MaskModel(ComposerModel):
    """Weights and masks that minimise loss, under constraints on how many gates are open.

    `student` and `masks` are the submodules: they are trained and saved. The teacher is neither. `step` is to be set
    before every batch (distill/masks/train.py does); gates and the sizes asked for depend on it.

    Args:
        student: The target's weights, to be trained.
        masks: Of the target's shape and the draft's.
        teacher: The target, frozen; None where the loss does not ask it.
        config: Weights of the losses.
        warmup_batches: Over which the sizes asked for move from the target's to the draft's.
        cpu_bfloat16: As in DistillModel.
    """

    def __init__(
        self,
        student: AnswerLogits,
        masks: Masks,
        teacher: Teacher | None,
        *,
        config: MasksConfig,
        warmup_batches: int,
        cpu_bfloat16: bool,
    ):
        super().__init__()
        self.student = student
        self.masks = masks
        self.teacher = teacher
        self.config = config
        self.warmup_batches = warmup_batches
        self.cpu_bfloat16 = cpu_bfloat16
        self.vocab_size = vocab_size_of(student.lm)
        self.step = 0

    @property
    def progress(self) -> float:
        """How far the sizes asked for have moved, in [0, 1]."""
        return min(1.0, self.step / self.warmup_batches)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Losses of the masked student on a batch: `tokens` in nats per token, with its parts, and `constraint`."""
        ids_BT = batch["input_ids"]
        with (
            torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.cpu_bfloat16),
            masked(self.student.lm, self.masks.sampled(self.step), self.masks.source),
        ):
            predicting_BT = predicts(ids_BT)
            rows = {"input_ids": ids_BT, "keep": predicting_BT}
            teacher = None if self.teacher is None else self.teacher.rows(rows, vocab_size=self.vocab_size)
            losses = self.student(ids_BT, predicting_BT, partial(self.token_losses, teacher, ids_BT[:, 1:].flatten()))
        with torch.autocast(ids_BT.device.type, enabled=False):
            return {**losses, "constraint": self.masks.lagrangian(self.progress)}

    def loss(  # pyright: ignore[reportIncompatibleMethodOverride]  # Composer's trainer takes a dict with a total
        self,
        outputs: dict[str, Tensor],
        batch: Batch,  # noqa: ARG002  # Composer's signature
    ) -> dict[str, Tensor]:
        """The weighted sum as `total`, which is trained on, and its parts.

        All sequences are of one length, so the trainer's weights by sequences are weights by tokens.
        """
        reported = {name: value for name, value in outputs.items() if name != "tokens"}
        return {**reported, "total": outputs["tokens"] + outputs["constraint"]}

    def token_losses(
        self, teacher: TeacherRows | None, next_ids_A: Tensor, student_AH: Tensor, head: Head
    ) -> dict[str, Tensor]:
        """Means over tokens, from chunks of logits: `tokens`, and its parts without gradients."""
        weights = {"lm": self.config.lm_weight}
        if teacher is not None:
            weights["kl"] = self.config.kl_weight
        parts = {name: torch.zeros((), device=student_AH.device) for name in weights}

        def loss_of_rows(student_CV: Tensor, rows: slice) -> Tensor:
            losses = {"lm": cross_entropy(student_CV, next_ids_A[rows])}
            if teacher is not None:
                losses["kl"] = forward_kl(student_CV, teacher.logits(rows))
            for name, loss_C in losses.items():
                parts[name] += loss_C.detach().sum()
            return torch.stack([weights[name] * loss_C for name, loss_C in losses.items()]).sum(dim=0)

        tokens = sum_of_rows(student_AH, head, loss_of_rows)
        return {name: each / len(next_ids_A) for name, each in {**parts, "tokens": tokens}.items()}


def predicts(ids_BT: Tensor) -> Tensor:
    """predicting_BT: every position but each sequence's last, which predicts nothing."""
    predicting_BT = torch.ones_like(ids_BT, dtype=torch.bool)
    predicting_BT[:, -1] = False
    return predicting_BT
