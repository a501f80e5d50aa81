"""The student beside its teacher, as Composer's trainer wants a model.

Shape suffixes used in this file:
    B = sequences in the batch, T = tokens per sequence, H = hidden width, V = vocabulary entries
    A = positions that predict an answer token, of all sequences of a batch; C = some of these
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from composer.models import ComposerModel
from torch import Tensor
from torchmetrics import Metric

from architectures.shapes import Shape
from distill.answer_logits import AnswerLogits, head_of
from distill.chunked import Head, map_rows, sum_of_rows
from distill.flops import training_flops
from distill.metrics import Answer, answers_of, eval_metrics, quantities_of_rows
from distill.objective import Objective
from distill.phase_clock import PhaseClock
from distill.selection import Selection
from distill.teacher import Teacher, TeacherRows

Batch = Mapping[str, Tensor]


@dataclass(frozen=True)
class HeldOut:
    """What metrics must know of the held-out answers.

    Attributes:
        tasks: Names of the tasks their prompts are of; a batch's `task` is a place in it.
        temperature: They were decoded at; 0 is greedy.
        top_p: Probability mass they were drawn from.
    """

    tasks: tuple[str, ...] = ()
    temperature: float = 0.0
    top_p: float = 1.0


class DistillModel(ComposerModel):
    """Learns the teacher's distribution at every token of its answers, or at those a selection chooses.

    `student` is the only submodule, so it alone is trained, wrapped and saved. Logits exist a chunk at a time, inside
    the student's forward, and cover the ids that all models have: what pads one of the vocabularies has probability
    zero.

    Args:
        student: Trained.
        teacher: Asked. On the device the student trains on.
        objective: What is minimised.
        selection: Which tokens count; all of them if None.
        held_out: Of the answers it is evaluated on.
        cpu_bfloat16: Run the student's matrix products in bfloat16 on a processor. Composer does this on GPUs itself
            (`amp_bf16`) and refuses to elsewhere.
    """

    def __init__(
        self,
        student: AnswerLogits,
        teacher: Teacher,
        *,
        objective: Objective,
        selection: Selection | None = None,
        held_out: HeldOut = HeldOut(),
        cpu_bfloat16: bool,
    ):
        super().__init__()
        self.student = student
        self.teacher = teacher
        self.objective = objective
        self.selection = selection
        self.held_out = held_out
        self.cpu_bfloat16 = cpu_bfloat16
        self.shapes = tuple(Shape.from_config(lm.config.to_dict()) for lm in (student.lm, teacher.model.lm))
        self.clock = PhaseClock(on_gpu=torch.cuda.is_available())  # StepTimes names all phases but the teacher's
        others = [teacher] if selection is None else [teacher, selection.reference]
        self.vocab_size = min(head_of(student.lm).vocab_size, *(each.vocab_size for each in others))

    def forward(self, batch: Batch) -> Tensor:
        """The loss summed over the answer's positions."""
        ask = self.objective.asks_teacher or self.selection is not None
        teacher = self.rows_of(self.teacher, batch) if ask else None
        return self.read(batch, partial(self.loss_sum, batch=batch, teacher=teacher))

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Mean over the answer tokens of the batch, nats per token. The one place where a loss is normalised.

        The trainer weighs micro-batches and ranks by their answer tokens, so how a batch is split does not matter.
        """
        return outputs / batch["keep"].sum().clamp(min=1)

    def eval_forward(self, batch: Batch, outputs: Tensor | None = None) -> list[Answer]:  # noqa: ARG002
        """What both models make of each answer of the batch."""
        teacher, token_ids_A = self.rows_of(self.teacher, batch), batch["next_ids"][batch["keep"]]
        decoding = {"temperature": self.held_out.temperature, "top_p": self.held_out.top_p}

        def of_rows(student_CV: Tensor, rows: slice) -> Tensor:
            return quantities_of_rows(student_CV, teacher.logits(rows), token_ids_A[rows], **decoding)

        def measure(hidden_AH: Tensor, head: Head) -> Tensor:
            return map_rows(hidden_AH, head.narrowed(self.vocab_size), of_rows)

        return answers_of(self.read(batch, measure), batch["keep"].sum(dim=1).tolist())

    def get_metrics(self, is_train: bool = False) -> dict[str, Metric]:  # noqa: FBT001, FBT002  # Composer's signature
        """Metrics of held-out answers; none while training, where the loss says enough."""
        return {} if is_train else dict(eval_metrics(self.held_out.tasks))

    def update_metric(self, batch: Any, outputs: list[Answer], metric: Metric) -> None:
        """Count the outputs of one batch."""
        metric.update(outputs, batch["task"][:, 0].tolist())

    def flops_per_batch(self, batch: Batch) -> int:
        """FLOPs of a training step on a batch; Composer's SpeedMonitor makes a utilisation of it."""
        lengths = zip(batch["attention_mask"].sum(dim=1).tolist(), batch["keep"].sum(dim=1).tolist(), strict=True)
        student, teacher = self.shapes
        return training_flops(student, teacher, lengths)

    def read(self, batch: Batch, reader: Any) -> Tensor:
        """What the reader makes of the student's hidden states and head, at the answer's positions."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.cpu_bfloat16):
            return self.student(batch["input_ids"], batch["keep"], reader)

    def rows_of(self, teacher: Teacher, batch: Batch) -> TeacherRows:
        """What a frozen model would say at the answer's positions."""
        with self.teacher_time():
            return teacher.rows(batch["input_ids"], batch["keep"], vocab_size=self.vocab_size)

    def teacher_time(self) -> AbstractContextManager[None]:
        """Counts what is done within as the teacher's part of a training step; an evaluation is not split."""
        return self.clock.phase("teacher") if self.training else nullcontext()

    def loss_sum(self, hidden_AH: Tensor, head: Head, *, batch: Batch, teacher: TeacherRows | None) -> Tensor:
        """The loss summed over answer tokens, chosen ones alone where there is a selection; scalar float32."""
        head, token_ids_A = head.narrowed(self.vocab_size), batch["next_ids"][batch["keep"]]
        weights_A = self.selected(hidden_AH, head, batch, teacher)
        places_A = weights_A.nonzero().squeeze(1)  # what is left out needs no logits

        def loss_of_rows(student_CV: Tensor, rows: slice) -> Tensor:
            places_C = places_A[rows]
            asked = teacher if self.objective.asks_teacher else None
            with self.teacher_time():
                teacher_CV = None if asked is None else asked.logits(places_C)
            return self.objective(student_CV, teacher_CV, token_ids_A[places_C])

        return sum_of_rows(hidden_AH[places_A], head, loss_of_rows, weights_A=weights_A[places_A])

    def selected(self, hidden_AH: Tensor, head: Head, batch: Batch, teacher: TeacherRows | None) -> Tensor:
        """weights_A of the tokens' losses: 1 for all of them, or what the selection gives."""
        if self.selection is None:
            return torch.ones(len(hidden_AH), device=hidden_AH.device)
        assert teacher is not None, "a selection compares with the teacher"
        return self.selection.weights(
            hidden_AH,
            head,
            teacher,
            self.rows_of(self.selection.reference, batch),
            num_tokens_B=batch["keep"].sum(dim=1).tolist(),
            temperature=self.objective.temperature,
        )
