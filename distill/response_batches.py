"""Dataloaders of responses for Composer: sharded over ranks, prefetched, counted, and split into micro-batches.

Shape suffixes used in this file:
    B = sequences in the batch
    T = tokens of the longest sequence in it
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from composer import DataSpec
from composer.utils import dist
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import DataLoader

from distill.data.batches import ResponseDataset
from distill.recipe.recipe import Recipe
from distill.teacher_cache import CachedResponses

GPU_PADDING = 64  # tokens: at most 32 widths of sequences of 2,048
BATCHES_AHEAD = 2  # prefetched in addition to the current one


class ReadAhead(DataLoader[Any]):
    """A loader that prefetches batches without worker processes. Composer takes loaders and no iterators.

    Errors in making a batch are raised when it is requested.
    """

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch has a class here
        """Prefetch with one thread per epoch, which ends with the epoch, even if that is interrupted."""
        return made_ahead(super().__iter__())


def made_ahead(batches: Iterator[Any]) -> Iterator[Any]:
    end = object()
    reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
    try:
        pending = deque(reader.submit(next, batches, end) for _ in range(BATCHES_AHEAD))
        while (batch := pending.popleft().result()) is not end:
            pending.append(reader.submit(next, batches, end))
            yield batch
    finally:
        reader.shutdown(wait=True, cancel_futures=True)


TOKEN_COLUMNS = {"input_ids", "attention_mask", "keep", "next_ids"}  # padded with 0, which is PAD_ID and False


def padding_multiple() -> int:
    """Return the multiple of a forward pass's width: GPU attention makes a plan for each width."""
    return GPU_PADDING if torch.cuda.is_available() else 1


@dataclass(frozen=True)
class Widths:
    """Widths of micro-batches, as arguments of cut_padding."""

    multiple: int = 1
    longest: int | None = None

    @classmethod
    def of(cls, recipe: Recipe) -> "Widths":
        return cls(padding_multiple(), recipe.data.max_seq_len)

    def fit(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return cut_padding(batch, multiple=self.multiple, longest=self.longest)


AS_THEY_ARE = Widths()


def split_batch(batch: Mapping[str, Tensor], microbatch_size: int) -> list[dict[str, Tensor]]:
    """Split a batch into micro-batches; Composer's own function warns if a batch is smaller."""
    pieces = {name: tensor_BT.split(microbatch_size) for name, tensor_BT in batch.items()}
    return [dict(zip(pieces, piece, strict=True)) for piece in zip(*pieces.values(), strict=True)]


def cut_padding(batch: Mapping[str, Tensor], *, multiple: int = 1, longest: int | None = None) -> dict[str, Tensor]:
    """Remove columns that are padding in every row, or add some, up to a multiple of the width.

    Tensors without a column per token keep their width.

    Args:
        multiple: Of the width; GPU attention makes plans for each width, of which there should be few.
        longest: Maximum width: a model has no more positions. None for no limit.
    """
    tokens = int(batch["attention_mask"].sum(dim=1).max())
    wanted = -(-tokens // multiple) * multiple
    width = wanted if longest is None else max(tokens, min(wanted, longest))
    missing = max(0, width - batch["attention_mask"].shape[1])
    cut = {name: tensor_BT[:, :width] for name, tensor_BT in batch.items()}
    return {name: pad(each, (0, missing)) if name in TOKEN_COLUMNS else each for name, each in cut.items()}


def count_tokens(batch: Mapping[str, Tensor]) -> dict[str, int]:
    """Count real tokens and trained tokens, under the keys of Composer's trainer."""
    return {"total": int(batch["attention_mask"].sum()), "loss_generating": int(batch["keep"].sum())}


def build_dataspec(
    dataset: ResponseDataset | CachedResponses,
    *,
    device_batch_size: int,
    shuffle: bool,
    seed: int,
    rewritten: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] | None = None,
    widths: Widths = AS_THEY_ARE,
) -> DataSpec:
    """Build the data of Composer's trainer: this rank's share of the dataset, prefetched.

    The last, smaller batch is kept. If the number of ranks does not divide the dataset, the sampler repeats up to
    ranks - 1 examples at the end of an epoch; Composer drops these repeats from evaluations.

    Args:
        device_batch_size: Sequences per batch of this rank.
        rewritten: Transforms a batch before training.
    """
    sampler = dist.get_sampler(dataset, shuffle=shuffle, seed=seed)
    loader = ReadAhead(dataset, batch_size=device_batch_size, sampler=sampler, collate_fn=dataset.collate)
    return DataSpec(
        loader,
        batch_transforms=rewritten,
        split_batch=split_batch,  # pyright: ignore[reportArgumentType]  # sizes here are never fractions
        microbatch_transforms=widths.fit,
        get_num_tokens_in_batch=count_tokens,  # pyright: ignore[reportArgumentType]  # a dict, as Composer documents
    )
