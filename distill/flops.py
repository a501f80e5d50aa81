"""FLOPs of a training step. No torch, whose batches are only read: `widedraft check` asks here too."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from architectures.shapes.shape import Shape

if TYPE_CHECKING:
    from torch import Tensor

BACKWARD = 2  # times the forward pass: gradients of inputs and of weights


def forward_flops(shape: Shape, answers: Iterable[tuple[int, int]]) -> int:
    """FLOPs of a forward pass over sequences whose output head runs at some positions only.

    Args:
        shape: Of the model.
        answers: Tokens of each sequence, and positions of it that the head runs at.
    """
    head = head_flops(shape.head_rows, shape.hidden)
    return sum(
        num_tokens * (shape.flops_per_token((num_tokens + 1) // 2) - head) + num_kept * head
        for num_tokens, num_kept in answers
    )


def head_flops(rows: int, hidden: int) -> int:
    """FLOPs of an output head at one position."""
    return 2 * rows * hidden


def training_flops(student: Shape, answers: Iterable[tuple[int, int]], *, teacher: int) -> int:
    """FLOPs a step cannot do without: the student's forward and backward pass, and those of its teacher.

    What is computed twice to save memory is not counted, so that doing so does not look like more use of the device.
    """
    return (1 + BACKWARD) * forward_flops(student, answers) + teacher


def answers_in(batch: Mapping[str, "Tensor"]) -> list[tuple[int, int]]:
    """Tokens of each sequence of a batch, and positions of it that the head runs at."""
    return list(zip(batch["attention_mask"].sum(dim=1).tolist(), batch["keep"].sum(dim=1).tolist(), strict=True))
