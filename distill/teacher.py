"""The frozen teacher: run online, sharded over all processes, or read from a cache.

Shape suffixes used in this file:
    B = sequences in the batch, T = tokens per sequence, H = hidden width, V = vocabulary entries
    A = positions that predict a response token, of all sequences together, C = some of these, S = selected rows
    K = ids that the student outputs
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from composer.utils import dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from architectures.shapes import Shape, model_shape
from distill.chunked_loss import FrozenRows, Head, ResponseLogits, logits_of, vocab_size_of
from distill.estimate import forward_flops, head_flops, responses_in
from distill.teacher_cache import rows_in
from eval.large_targets import without_weights
from eval.models import load_model


@dataclass(frozen=True)
class AbsentTeacher:
    """Placeholder for training without a teacher.

    Attributes:
        vocab_size: Rows of the target's output head: other ids are not trained.
    """

    vocab_size: int

    def flops(self, batch: Mapping[str, Tensor], *, rows: int | None = None) -> int:  # noqa: ARG002  # same for all
        return 0


@dataclass(frozen=True)
class TeacherRows:
    """The teacher at every response position of a batch; logits are computed on demand.

    Attributes:
        hidden_AH: Output of its final norm, in its dtype.
        head: Its output head.
    """

    hidden_AH: Tensor
    head: Head

    @torch.no_grad()
    def logits(self, rows: slice | Tensor) -> Tensor:
        """Return logits_CV of some rows, in the teacher's dtype regardless of autocast."""
        with torch.autocast(self.hidden_AH.device.type, enabled=False):
            return self.head.logits(self.hidden_AH[rows])

    def outputs(self, rows: slice | Tensor) -> Tensor:
        """Return the teacher's input to a loss: logits_CV."""
        return self.logits(rows)


class Teacher:
    """A frozen model, whole on every process.

    Deliberately not a torch module: as a submodule of the student's model it would be checkpointed, optimised and
    wrapped by DDP or FSDP2.
    """

    def __init__(self, model: ResponseLogits):
        self.model = model.eval().requires_grad_(requires_grad=False)
        self.device_type = next(model.parameters()).device.type
        self.kept_rows = FrozenRows()

    @property
    def vocab_size(self) -> int:
        return vocab_size_of(self.model.lm)

    @torch.no_grad()
    def logits(self, input_ids_BT: Tensor, keep_BT: Tensor, prompt_len_B1: Tensor | None = None) -> Tensor:
        """Return logits_AV at the kept positions, in the teacher's dtype regardless of autocast."""
        with torch.autocast(self.device_type, enabled=False):
            return self.model(input_ids_BT, keep_BT, logits_of, prompt_len_B1=prompt_len_B1)

    @torch.no_grad()
    def rows(self, batch: Mapping[str, Tensor], *, vocab_size: int, ids_K: Tensor | None = None) -> TeacherRows:
        """Compute hidden states at the kept positions, for logits over the first vocab_size ids or over ids_K.

        Args:
            vocab_size: Number of shared ids.
            ids_K: Those that the student outputs, the same in every call; None for all.
        """

        def read(hidden_AH: Tensor, head: Head) -> TeacherRows:  # within the model, where a sharded head is gathered
            return TeacherRows(
                hidden_AH, head.narrowed(vocab_size) if ids_K is None else self.kept_rows.of(head, ids_K)
            )

        with torch.autocast(self.device_type, enabled=False):
            return self.model(
                batch["input_ids"], batch["keep"], read, batch.get("position_ids"), batch.get("prompt_len")
            )

    def flops(self, batch: Mapping[str, Tensor], *, rows: int | None = None) -> int:
        """Return the FLOPs of a forward pass with `rows` rows of the head, or with all."""
        return forward_flops(replace(self.shape, head_vocab=rows or 0), responses_in(batch))

    @cached_property
    def shape(self) -> Shape:
        return model_shape(self.model.lm.config.to_dict())


def load_teacher(
    target: Path, *, dtype: str, device: str, packing: bool = False, multiple: int = 1, bits: int | None = None
) -> Teacher:
    """Load the teacher from a target directory.

    Args:
        packing: As in ResponseLogits.
        multiple: As in ResponseLogits.
        bits: Per weight of its linear layers, if they are to be quantised.
    """
    lm = load_model(target, dtype=dtype, device=device, bits=bits)
    return Teacher(ResponseLogits(lm, packing=packing, multiple=multiple))


@dataclass(frozen=True)
class KeptEntries:
    """Cached entries at every response position of a batch, from a cache without hidden states.

    Attributes:
        kept: Named tensors with one row per position A, as distill/losses.py takes them.
    """

    kept: Mapping[str, Tensor]

    def outputs(self, rows: slice | Tensor) -> dict[str, Tensor]:
        """Return the teacher's input to a loss: the same tensors, C rows of each."""
        return {name: kept_A[rows] for name, kept_A in self.kept.items()}


class CachedTeacher:
    """Teacher read from the cached rows of a batch. Only its output head is loaded, for hidden states.

    Args:
        head: In the dtype of the hidden states, on the student's device.
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
        """Return the cached rows at the kept positions: hidden states, as Teacher.rows does, or entries.

        Entries are of the ids that the cache was made for, whatever the arguments.
        """
        rows = rows_in(batch)
        if "hidden" in rows:
            head = self.head.narrowed(vocab_size) if ids_K is None else self.kept_rows.of(self.head, ids_K)
            return TeacherRows(rows["hidden"], head)
        return KeptEntries(rows)

    def flops(self, batch: Mapping[str, Tensor], *, rows: int | None = None) -> int:
        """Return the FLOPs of `rows` rows of the head, or all, for hidden states; 0 for entries."""
        if "teacher_hidden" not in batch:
            return 0
        vocab, hidden = self.head.weight_VH.shape
        return int(batch["keep"].sum()) * head_flops(rows or vocab, hidden)


def load_sharded_teacher(target: Path, *, dtype: str, device: str, packing: bool = False, multiple: int = 1) -> Teacher:
    """Load the teacher sharded over all processes. Call on all processes.

    Rank 0 reads the weights into host memory and broadcasts the shards, so only one host holds a full copy.

    Raises:
        UserError: If the weights are missing or damaged, or the model does not support packing.
    """
    weights: dict[str, Any] = {}
    if dist.get_global_rank() == 0:
        weights = load_model(target, dtype=dtype, device="cpu").state_dict()
    model = ResponseLogits(without_weights(target, dtype=dtype), packing=packing, multiple=multiple)
    model.requires_grad_(requires_grad=False)
    shard(model, device=device)
    give_storage(model, device=device)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model.lm, weights, options=options)
    return Teacher(model)


def shard(model: ResponseLogits, *, device: str) -> None:
    """Shard every layer over all processes, and the rest as one more unit, which stays gathered after its first use."""
    mesh = init_device_mesh(torch.device(device).type, (dist.get_world_size(),))
    for layer in filter(model.fsdp_wrap_fn, model.modules()):
        fully_shard(layer, mesh=mesh)  # pyright: ignore[reportArgumentType]
    fully_shard(model, mesh=mesh, reshard_after_forward=False)


def give_storage(model: ResponseLogits, *, device: str) -> None:
    """Allocate this process's shards on its device, and restore the buffers."""
    held = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.to_empty(device=device)
    for name, buffer in model.named_buffers():
        buffer.copy_(held[name])
