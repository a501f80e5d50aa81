"""Student and teacher as a Composer model.

Shape suffixes used in this file:
    B = sequences in the batch
    T = tokens per sequence
    H = hidden width
    V = vocabulary entries
    K = entries that the student's head outputs: all of them, unless its vocabulary is reduced
    A = positions that predict a response token, of all sequences of a batch
    C = some of these
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from composer.models import ComposerModel
from torch import Tensor
from torchmetrics import Metric

from architectures.shapes import model_shape
from architectures.vocabulary_head import head_ids, rows_below, spread
from distill.callbacks import PhaseClock
from distill.chunked_loss import Head, ResponseLogits, learned, map_rows, sum_of_rows, vocab_size_of
from distill.data.batches import STUDENT_IDS
from distill.estimate import responses_in, training_flops
from distill.losses import Objective
from distill.metrics import (
    Known,
    Response,
    eval_metrics,
    own_acceptance_prob,
    quantities_of_rows,
    responses_of,
    responses_only,
)
from distill.teacher import AbsentTeacher, CachedTeacher, KeptEntries, Teacher, TeacherRows

Batch = Mapping[str, Tensor]


@dataclass(frozen=True)
class HeldOut:
    """Properties of the held-out responses that metrics depend on.

    Attributes:
        tasks: Names of the prompts' tasks; a batch's `task` is an index into it.
        temperature: Of sampling; 0 is greedy.
        top_p: Of sampling.
    """

    tasks: tuple[str, ...] = ()
    temperature: float = 0.0
    top_p: float = 1.0


class DistillModel(ComposerModel):
    """Model that learns the teacher's distribution at every response token.

    `student` is the only submodule, so the teacher is not trained, wrapped or saved. Logits exist a chunk at a time,
    inside the student's forward, and cover the ids that both models have: padding of either vocabulary has probability
    zero. A student with a reduced vocabulary learns over its own ids (distill/chunked_loss.py) and is evaluated over
    all, with probability zero for the missing ones.

    Args:
        teacher: On the device of the student; or a cache, whose rows are then part of the batches; or absent, with an
            objective that needs none.
        cpu_bfloat16: Run the student's matrix products in bfloat16 on a CPU. Composer's own `amp_bf16` supports only
            GPUs.
    """

    def __init__(
        self,
        student: ResponseLogits,
        teacher: Teacher | CachedTeacher | AbsentTeacher,
        *,
        objective: Objective,
        held_out: HeldOut = HeldOut(),
        cpu_bfloat16: bool,
    ):
        super().__init__()
        self.student = student
        self.teacher = teacher
        self.objective = objective
        self.held_out = held_out
        self.cpu_bfloat16 = cpu_bfloat16
        self.shape = model_shape(student.lm.config.to_dict())
        self.clock = PhaseClock(on_gpu=torch.cuda.is_available())  # StepTimes marks all phases but the teacher's
        self.vocab_size = min(vocab_size_of(student.lm), teacher.vocab_size)
        ids_K = head_ids(student.lm)
        self.rows = self.vocab_size if ids_K is None else rows_below(ids_K, self.vocab_size)  # of the student's head

    @property
    def ids_K(self) -> Tensor | None:  # noqa: N802  # a shape
        """Ids that the student outputs, out of those that both models have; None if it outputs them all."""
        ids_K = head_ids(self.student.lm)
        return None if ids_K is None else ids_K[: self.rows]

    def forward(self, batch: Batch) -> Tensor:
        """Compute the loss summed over response positions."""
        batch = learned(batch, self.ids_K)
        teacher = self.rows_of(self.teacher, batch, self.ids_K) if self.objective.needs_teacher else None

        def measure(hidden_AH: Tensor, head: Head) -> Tensor:
            with self.clock.label("loss"):
                return self.loss_sum(hidden_AH, head, batch=batch, teacher=teacher)

        return self.read(batch, measure)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the mean loss per response token of the batch, in nats. The only place where a loss is normalised.

        The trainer weighs micro-batches and ranks by their response tokens, so the split of a batch does not matter.
        Tokens outside a reduced vocabulary count, with a loss of 0.
        """
        return outputs / batch["keep"].sum().clamp(min=1)

    def eval_forward(self, batch: Batch, outputs: Tensor | None = None) -> list[Response]:  # noqa: ARG002
        token_ids_A, num_tokens_B = batch["next_ids"][batch["keep"]], batch["keep"].sum(dim=1).tolist()
        decoding = {"temperature": self.held_out.temperature, "top_p": self.held_out.top_p}
        teacher = None if isinstance(self.teacher, AbsentTeacher) else self.rows_of(self.teacher, batch)
        assert not isinstance(teacher, KeptEntries), "held-out responses are cached as hidden states"

        def of_rows(student_CK: Tensor, rows: slice) -> Tensor:
            student_CV = self.whole(student_CK)
            if teacher is None:
                return own_acceptance_prob(student_CV, token_ids_A[rows], **decoding)
            return quantities_of_rows(student_CV, teacher.logits(rows), token_ids_A[rows], **decoding)

        def measure(hidden_AH: Tensor, head: Head) -> Tensor:
            return map_rows(hidden_AH, head.narrowed(self.rows), of_rows, entries=self.vocab_size)

        values = self.read(batch, measure)
        if teacher is None:
            return responses_only(values, num_tokens_B, temperature=self.held_out.temperature)
        return responses_of(values, num_tokens_B)

    def whole(self, student_CK: Tensor) -> Tensor:
        """Return the student's logits_CV over all ids, -inf for those outside a reduced vocabulary."""
        ids_K = self.ids_K
        return student_CK if ids_K is None else spread(student_CK, ids_K, self.vocab_size, elsewhere=-torch.inf)

    def get_metrics(self, is_train: bool = False) -> dict[str, Metric]:  # noqa: FBT001, FBT002  # Composer's signature
        known = Known(not isinstance(self.teacher, AbsentTeacher), self.held_out.temperature)
        return {} if is_train else dict(eval_metrics(self.held_out.tasks, known))

    def update_metric(self, batch: Any, outputs: list[Response], metric: Metric) -> None:
        metric.update(outputs, batch["task"][:, 0].tolist())

    def flops_per_batch(self, batch: Batch) -> int:
        """Return the FLOPs of a training step, for the MFU of Composer's SpeedMonitor."""
        batch, rows = learned(batch, self.ids_K), None if self.ids_K is None else self.rows
        teacher = self.teacher.flops(batch, rows=rows) if self.objective.needs_teacher else 0
        return training_flops(self.shape, responses_in(batch), teacher=teacher)

    def read(self, batch: Batch, reader: Any) -> Tensor:
        """Return the reader's result on the student's hidden states and head at the response positions."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.cpu_bfloat16):
            input_ids_BT = batch.get(STUDENT_IDS, batch["input_ids"])
            return self.student(input_ids_BT, batch["keep"], reader, batch.get("position_ids"), batch.get("prompt_len"))

    def rows_of(
        self, teacher: Teacher | CachedTeacher | AbsentTeacher, batch: Batch, ids_K: Tensor | None = None
    ) -> TeacherRows | KeptEntries:
        """Return the teacher's outputs at the response positions, computed or cached, over some ids or all."""
        assert not isinstance(teacher, AbsentTeacher), "recipes with a live teacher have one"
        with self.teacher_time():
            return teacher.rows(batch, vocab_size=self.vocab_size, ids_K=ids_K)

    def teacher_time(self) -> AbstractContextManager[None]:
        """Time the block as the teacher's phase of a training step; evaluations are not split into phases."""
        return self.clock.phase("teacher") if self.training else nullcontext()

    def loss_sum(
        self, hidden_AH: Tensor, head: Head, *, batch: Batch, teacher: TeacherRows | KeptEntries | None
    ) -> Tensor:
        token_ids_A = batch["next_ids"][batch["keep"]]

        def loss_of_rows(student_CK: Tensor, rows: slice) -> Tensor:
            output = None
            if teacher is not None:
                with self.teacher_time():
                    output = teacher.outputs(rows)
            return self.objective(student_CK, output, token_ids_A[rows])

        return sum_of_rows(hidden_AH, head.narrowed(self.rows), loss_of_rows)
