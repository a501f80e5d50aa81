"""The frozen teacher: the target of the recipe, run beside the student to say what it would have answered.

What takes its place where a cache was made of it is in distill/teacher/cached.py.

Shape suffixes used in this file:
    B = sequences in the batch, T = tokens per sequence, H = hidden width, V = vocabulary entries
    A = positions that predict an answer token, of all sequences together, C = some of these
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from architectures.shapes import Shape
from distill.losses.answer_logits import AnswerLogits, logits_of
from distill.losses.chunked import Head
from distill.monitoring.flops import answers_in, forward_flops
from eval.models import load_model


@dataclass(frozen=True)
class TeacherRows:
    """What the teacher would say at every answer position of a batch, whose logits are made when they are asked for.

    Attributes:
        hidden_AH: What its last norm put out, in its own dtype.
        head: Its output head.
    """

    hidden_AH: Tensor
    head: Head

    @torch.no_grad()
    def logits(self, rows: slice | Tensor) -> Tensor:
        """Logits_CV of some rows, in the teacher's own dtype whatever autocast surrounds the call."""
        with torch.autocast(self.hidden_AH.device.type, enabled=False):
            return self.head.logits(self.hidden_AH[rows])

    def said(self, rows: slice | Tensor) -> Tensor:
        """What a loss is told of some rows: their logits_CV."""
        return self.logits(rows)


class Teacher:
    """A model that answers and never learns.

    It is not a torch module on purpose: as a submodule of the student's model it would land in checkpoints, in the
    optimiser's walk over parameters, and in what DDP or FSDP2 wrap. Every process holds all of it.
    """

    def __init__(self, model: AnswerLogits):
        self.model = model.eval().requires_grad_(requires_grad=False)
        self.device_type = next(model.parameters()).device.type

    @property
    def vocab_size(self) -> int:
        """Rows of its output head."""
        return len(self.model.lm.get_output_embeddings().weight)  # pyright: ignore[reportOptionalMemberAccess]

    @torch.no_grad()
    def logits(self, input_ids_BT: Tensor, keep_BT: Tensor) -> Tensor:
        """Logits_AV at the kept positions, in the teacher's own dtype whatever autocast surrounds the call."""
        with torch.autocast(self.device_type, enabled=False):
            return self.model(input_ids_BT, keep_BT, logits_of)

    @torch.no_grad()
    def rows(self, batch: Mapping[str, Tensor], *, vocab_size: int) -> TeacherRows:
        """What logits of the kept positions are made from, over the first vocab_size entries."""
        with torch.autocast(self.device_type, enabled=False):
            rows = self.model(batch["input_ids"], batch["keep"], TeacherRows, batch.get("position_ids"))
        return TeacherRows(rows.hidden_AH, rows.head.narrowed(vocab_size))

    def flops(self, batch: Mapping[str, Tensor]) -> int:
        """FLOPs of reading a batch."""
        return forward_flops(self.shape, answers_in(batch))

    @cached_property
    def shape(self) -> Shape:
        """Of the model."""
        return Shape.from_config(self.model.lm.config.to_dict())


def load_teacher(target: Path, *, dtype: str, device: str, packing: bool = False) -> Teacher:
    """The teacher of a target folder.

    Args:
        target: A Hugging Face folder.
        dtype: Number type of its weights and arithmetic: "float32", "bfloat16" or "float16".
        device: Where it runs, as torch names it.
        packing: As in AnswerLogits.
    """
    return Teacher(AnswerLogits(load_model(target, dtype=dtype, device=device), packing=packing))
