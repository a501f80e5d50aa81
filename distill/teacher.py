"""The frozen teacher while a draft learns: run online, in shards over all processes, or read from a cache.

Shape suffixes used in this file:
    B = sequences in the batch, T = tokens per sequence, H = hidden width, V = vocabulary entries
    A = positions that predict an answer token, of all sequences together, C = some of these, S = those chosen
    K = ids that the student outputs
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from composer.utils import dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, PreTrainedModel

from architectures.shapes import Shape
from distill.chunked_loss import AnswerLogits, FrozenRows, Head, logits_of, vocab_size_of
from distill.estimate import answers_in, forward_flops, head_flops
from distill.teacher_cache import rows_in
from eval.models import load_config, load_model


@dataclass(frozen=True)
class AbsentTeacher:
    """Stands where a teacher would.

    Attributes:
        vocab_size: Rows of the target's output head: ids that it does not have are not learned either.
    """

    vocab_size: int

    def flops(self, batch: Mapping[str, Tensor], *, rows: int | None = None) -> int:  # noqa: ARG002  # as every teacher's
        """Of what it says: nothing."""
        return 0


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


@dataclass(frozen=True)
class KeptEntries:
    """What a cache kept at every answer position of a batch where it did not keep hidden states.

    Attributes:
        kept: Named tensors with one row for each of the A positions, as distill/loss_formulas.py wants them.
    """

    kept: Mapping[str, Tensor]

    def outputs(self, rows: slice | Tensor) -> dict[str, Tensor]:
        """What a loss is told of some rows: the same tensors, C rows of each."""
        return {name: kept_A[rows] for name, kept_A in self.kept.items()}


class CachedTeacher:
    """Says of a batch what a cache says. Of its weights only the output head is there, for hidden states.

    Args:
        head: Of the teacher, in the dtype of the hidden states, on the device the student trains on.
    """

    def __init__(self, head: Head):
        self.head = head
        self.kept_rows = FrozenRows()

    @property
    def vocab_size(self) -> int:
        return self.head.vocab_size

    def rows(
        self, batch: Mapping[str, Tensor], *, vocab_size: int, ids_K: Tensor | None = None
    ) -> TeacherRows | KeptEntries:
        """What the batch brings of the kept positions: what logits are made from, over the ids of Teacher.rows.

        Or the entries that were kept, which are of the ids that the cache was made for, whatever is asked for here.
        """
        rows = rows_in(batch)
        if "hidden" in rows:
            head = self.head.narrowed(vocab_size) if ids_K is None else self.kept_rows.of(self.head, ids_K)
            return TeacherRows(rows["hidden"], head)
        return KeptEntries(rows)

    def flops(self, batch: Mapping[str, Tensor], *, rows: int | None = None) -> int:
        """FLOPs of so many rows of the head, or all, where a batch brings hidden states; 0 where it brings entries."""
        if "teacher_hidden" not in batch:
            return 0
        vocab, hidden = self.head.weight_VH.shape
        return int(batch["keep"].sum()) * head_flops(rows or vocab, hidden)


def load_sharded_teacher(target: Path, *, dtype: str, device: str, packing: bool = False, multiple: int = 1) -> Teacher:
    """The teacher of a target folder, each process with its share. Call on all processes.

    Rank 0 reads the folder into its host's memory and hands out the shards, so one copy exists, and on one host alone.

    Args:
        target: A Hugging Face folder.
        dtype: Number type of its weights and arithmetic: "float32", "bfloat16" or "float16".
        device: Where this process's share goes, as torch names it.
        packing: As in AnswerLogits.
        multiple: Likewise.

    Raises:
        UserError: If the folder's weights are missing or damaged, or packing is asked for and cannot be.
    """
    weights: dict[str, Any] = {}
    if dist.get_global_rank() == 0:
        weights = load_model(target, dtype=dtype, device="cpu").state_dict()
    model = AnswerLogits(without_weights(target, dtype=dtype), packing=packing, multiple=multiple)
    model.requires_grad_(requires_grad=False)
    shard(model, device=device)
    give_storage(model, device=device)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model.lm, weights, options=options)
    return Teacher(model)


def without_weights(target: Path, *, dtype: str) -> PreTrainedModel:
    """The model of a folder, its parameters without storage; buffers, which no checkpoint holds, are there."""
    config = load_config(target)
    with init_empty_weights(include_buffers=False):
        lm = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype), trust_remote_code=False)
    lm.tie_weights()
    return lm


def shard(model: AnswerLogits, *, device: str) -> None:
    """Divide every layer over all processes, and the rest as one more unit, which stays gathered once it was used."""
    mesh = init_device_mesh(torch.device(device).type, (dist.get_world_size(),))
    for layer in filter(model.fsdp_wrap_fn, model.modules()):
        fully_shard(layer, mesh=mesh)  # pyright: ignore[reportArgumentType]
    fully_shard(model, mesh=mesh, reshard_after_forward=False)


def give_storage(model: AnswerLogits, *, device: str) -> None:
    """Room for this process's shards on its device, and the buffers with what they held."""
    held = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.to_empty(device=device)
    for name, buffer in model.named_buffers():
        buffer.copy_(held[name])
