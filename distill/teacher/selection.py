"""Which answer tokens are trained on: those the student has most left to learn, as a reference draft shows.

Shape suffixes used in this file:
    B = sequences in the batch, H = hidden width, V = entries of the student's head
    A = answer tokens of all sequences, sequence after sequence, C = some of these, S = those chosen
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from architectures.errors import UserError
from architectures.vocabulary_head import head_ids
from distill.formulas.dense import forward_kl
from distill.losses.chunked import Head, map_rows
from distill.teacher.live import Teacher, TeacherRows


@dataclass(frozen=True)
class Selection:
    """The share of an answer's tokens to train on, and the frozen draft that tells hard tokens from hopeless ones.

    Source: Hu et al. 2025, "AdaSPEC: Selective Knowledge Distillation for Efficient Speculative Decoders"
    (arXiv 2510.19779). There the share is of a batch; here it is of each answer, so that what is chosen, and with it
    the gradient of a batch, does not depend on how the batch is split over micro-batches and processes.
    """

    reference: Teacher
    fraction: float

    def weights(
        self,
        hidden_AH: Tensor,
        head: Head,
        teacher: TeacherRows,
        reference: TeacherRows,
        *,
        num_tokens_B: Sequence[int],
        temperature: float,
    ) -> Tensor:
        """weights_A of chosen_weights, by how far KL(teacher || student) is above KL(teacher || reference)."""

        def gap(student_CV: Tensor, rows: slice) -> Tensor:
            teacher_CV = teacher.logits(rows)
            return forward_kl(student_CV, teacher_CV, temperature=temperature) - forward_kl(
                reference.logits(rows), teacher_CV, temperature=temperature
            )

        return chosen_weights(map_rows(hidden_AH, head, gap), num_tokens_B, fraction=self.fraction)


def refuse_other_ids(reference: PreTrainedModel, student: PreTrainedModel, *, where: str) -> None:
    """Refuse a reference draft that cannot output what the student outputs.

    Raises:
        UserError: If its head outputs some ids alone, and the student's head not just these.
    """
    theirs_K, ours_K = head_ids(reference), head_ids(student)
    if theirs_K is None or (ours_K is not None and torch.equal(theirs_K.cpu(), ours_K.cpu())):
        return
    ours = "every id" if ours_K is None else f"{len(ours_K)} ids, not the same ones"
    raise UserError(
        f"{where}: its head says {len(theirs_K)} ids alone, and the student's {ours}. Name a reference that says every "
        "id, or one distilled with the student's draft_vocabulary.json (distill.token_selection.reference)."
    )


def chosen_weights(gap_A: Tensor, num_tokens_B: Sequence[int], *, fraction: float) -> Tensor:
    """Weights of each token's loss: 0 for those left out; those chosen share the weight of all tokens of their answer.

    So a sequence of n tokens weighs n, as it does without selection, and the mean over all answer tokens of a batch,
    which is what DistillModel.loss takes, is the mean over chosen tokens where the share divides n.

    Args:
        gap_A: The larger, the sooner chosen; of equal ones the earlier.
        num_tokens_B: Answer tokens of each sequence, A together.
        fraction: In (0, 1]; of n tokens the nearest whole number to fraction * n is chosen, at least one.

    Returns:
        weights_A, float32.
    """
    weights_A = torch.zeros_like(gap_A, dtype=torch.float32)
    for weights, gaps in zip(weights_A.split(list(num_tokens_B)), gap_A.split(list(num_tokens_B)), strict=True):
        if len(gaps):
            num_chosen = max(1, round(fraction * len(gaps)))
            chosen = gaps.argsort(descending=True, stable=True)[:num_chosen]
            weights[chosen] = len(gaps) / num_chosen
    return weights_A
