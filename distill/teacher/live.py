"""The frozen teacher: the target of the recipe, run beside the student to say what it would have answered.

What takes its place where a cache was made of it is in distill/teacher/cached.py.

Shape suffixes used in this file:
    B = sequences in the batch, T = tokens per sequence, H = hidden width, V = vocabulary entries, K = those kept
    A = positions that predict an answer token, of all sequences together, C = some of these
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from architectures.shapes.shape import Shape
from distill.flops import answers_in, forward_flops
from distill.losses.answer_logits import AnswerLogits, logits_of, vocab_size_of
from distill.losses.chunked import Head
from distill.losses.kept_rows import FrozenRows
from eval.models.loading import load_model


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

    def outputs(self, rows: slice | Tensor) -> Tensor:
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
        self.kept_rows = FrozenRows()

    @property
    def vocab_size(self) -> int:
        return vocab_size_of(self.model.lm)

    @torch.no_grad()
    def logits(self, input_ids_BT: Tensor, keep_BT: Tensor, prompt_len_B1: Tensor | None = None) -> Tensor:
        """Logits_AV at the kept positions, in the teacher's own dtype whatever autocast surrounds the call."""
        with torch.autocast(self.device_type, enabled=False):
            return self.model(input_ids_BT, keep_BT, logits_of, prompt_len_B1=prompt_len_B1)

    @torch.no_grad()
    def rows(self, batch: Mapping[str, Tensor], *, vocab_size: int, ids_K: Tensor | None = None) -> TeacherRows:
        """What logits of the kept positions are made from, over the first vocab_size entries, or over some ids alone.

        Args:
            batch: As the student reads it.
            vocab_size: How many ids count.
            ids_K: Those of them that the student says, the same in every call; None for all.
        """

        def read(hidden_AH: Tensor, head: Head) -> TeacherRows:  # within the model, where a sharded head is whole
            return TeacherRows(
                hidden_AH, head.narrowed(vocab_size) if ids_K is None else self.kept_rows.of(head, ids_K)
            )

        with torch.autocast(self.device_type, enabled=False):
            return self.model(
                batch["input_ids"], batch["keep"], read, batch.get("position_ids"), batch.get("prompt_len")
            )

    def flops(self, batch: Mapping[str, Tensor], *, rows: int | None = None) -> int:
        """FLOPs of reading a batch with so many rows of its head, or with all of them."""
        return forward_flops(replace(self.shape, head_vocab=rows or 0), answers_in(batch))

    @cached_property
    def shape(self) -> Shape:
        return Shape.from_config(self.model.lm.config.to_dict())


def load_teacher(
    target: Path, *, dtype: str, device: str, packing: bool = False, multiple: int = 1, bits: int | None = None
) -> Teacher:
    """The teacher of a target folder.

    Args:
        target: A Hugging Face folder.
        dtype: Number type of its weights and arithmetic: "float32", "bfloat16" or "float16".
        device: Where it runs, as torch names it.
        packing: As in AnswerLogits.
        multiple: Likewise.
        bits: Of a weight of its linear layers, if they are to be packed.
    """
    lm = load_model(target, dtype=dtype, device=device, bits=bits)
    return Teacher(AnswerLogits(lm, packing=packing, multiple=multiple))
