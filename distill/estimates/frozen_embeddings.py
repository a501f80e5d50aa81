"""Input embeddings that are not trained: of a draft of few layers they are most of the parameters. No torch.

With few answers they are also what learns them by heart: docs/distilling.md has what was measured.
"""

from typing import TYPE_CHECKING

from architectures.errors import UserError
from architectures.shapes.shape import Shape

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def freeze_input_embeddings(student: "PreTrainedModel") -> None:
    """Leave the rows of the student's token ids as they are; positions that are learned go on learning.

    Raises:
        UserError: If the output head is made of the same rows.
    """
    embeddings, head = student.get_input_embeddings().weight, student.get_output_embeddings()
    refuse_tied(tied=head is not None and head.weight is embeddings)
    embeddings.requires_grad_(False)  # noqa: FBT003  # a tensor's takes it no other way


def trained_parameters(student: Shape, *, frozen: bool) -> int:
    """How many have gradients and moments."""
    return student.parameters() - (student.vocab * student.hidden if frozen else 0)


def refuse_tied(*, tied: bool) -> None:
    """Raise UserError where the head would be frozen with the embeddings."""
    if tied:
        raise UserError(
            "distill.freeze_input_embeddings must be left out of a draft whose output head is its input embedding: "
            "the head would not be trained either. Leave it out, or give architecture.vocabulary a size, which makes "
            "the head a matrix of its own."
        )
