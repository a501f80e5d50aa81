"""Batches of answers as Composer's trainer reads them: shared by ranks, counted, and cut into micro-batches.

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

from distill.data.batches import AnswerDataset
from distill.recipe.recipe import Recipe
from distill.teacher_cache import CachedAnswers

GPU_PADDING = 64  # tokens: at most 32 widths of sequences of 2,048
BATCHES_AHEAD = 2  # that are held beside the one that is trained on


class ReadAhead(DataLoader[Any]):
    """A loader without worker processes whose next batches are made meanwhile. Composer takes loaders and no iterators.

    What goes wrong while a batch is made is raised where it is asked for.
    """

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch has a class here
        """A thread of its own for every epoch, which ends with it, also where the epoch is broken off."""
        return made_ahead(super().__iter__())


def made_ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """The same values, the next ones asked for by a thread before they are wanted."""
    end = object()
    reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
    try:
        asked = deque(reader.submit(next, batches, end) for _ in range(BATCHES_AHEAD))
        while (batch := asked.popleft().result()) is not end:
            asked.append(reader.submit(next, batches, end))
            yield batch
    finally:
        reader.shutdown(wait=True, cancel_futures=True)


TOKEN_COLUMNS = {"input_ids", "attention_mask", "keep", "next_ids"}  # PAD_ID and False are 0


def padding_multiple() -> int:
    """Tokens of which the width of a forward pass is a multiple: a GPU's attention makes a plan for each width."""
    return GPU_PADDING if torch.cuda.is_available() else 1


@dataclass(frozen=True)
class Widths:
    """How wide micro-batches are, by what cut_padding takes."""

    multiple: int = 1
    longest: int | None = None

    @classmethod
    def of(cls, recipe: Recipe) -> "Widths":
        """Those of a recipe's answers on this machine."""
        return cls(padding_multiple(), recipe.data.max_seq_len)

    def fit(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A micro-batch as wide as that."""
        return cut_padding(batch, multiple=self.multiple, longest=self.longest)


AS_THEY_ARE = Widths()


def split_batch(batch: Mapping[str, Tensor], microbatch_size: int) -> list[dict[str, Tensor]]:
    """The batch in pieces of at most microbatch_size sequences; Composer's own warns when a batch is smaller."""
    pieces = {name: tensor_BT.split(microbatch_size) for name, tensor_BT in batch.items()}
    return [dict(zip(pieces, piece, strict=True)) for piece in zip(*pieces.values(), strict=True)]


def cut_padding(batch: Mapping[str, Tensor], *, multiple: int = 1, longest: int | None = None) -> dict[str, Tensor]:
    """The batch without the columns that are padding in every row, as far as its width is to be a multiple.

    It is what a micro-batch keeps of its batch's width, which it may exceed. What is not a column for each token keeps
    what it has.

    Args:
        batch: Of one micro-batch.
        multiple: Of tokens; a GPU's attention makes plans for each width, which are to be few.
        longest: What no sequence exceeds, nor its padding: a model has no more positions. No bound if left out.
    """
    tokens = int(batch["attention_mask"].sum(dim=1).max())
    wanted = -(-tokens // multiple) * multiple
    width = wanted if longest is None else max(tokens, min(wanted, longest))
    missing = max(0, width - batch["attention_mask"].shape[1])
    cut = {name: tensor_BT[:, :width] for name, tensor_BT in batch.items()}
    return {name: pad(each, (0, missing)) if name in TOKEN_COLUMNS else each for name, each in cut.items()}


def count_tokens(batch: Mapping[str, Tensor]) -> dict[str, int]:
    """Real tokens, and those that make loss, under the names Composer's trainer asks for."""
    return {"total": int(batch["attention_mask"].sum()), "loss_generating": int(batch["keep"].sum())}


def build_dataspec(
    dataset: AnswerDataset | CachedAnswers,
    *,
    device_batch_size: int,
    shuffle: bool,
    seed: int,
    rewritten: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] | None = None,
    widths: Widths = AS_THEY_ARE,
) -> DataSpec:
    """What Composer's trainer reads, ahead: this rank's share of the dataset, and how to count and cut its batches.

    The last, smaller batch is kept. Where the number of ranks does not divide the dataset, the sampler repeats up to
    ranks - 1 examples at the end of an epoch; Composer drops these repeats from evaluations.

    Args:
        dataset: Read from.
        device_batch_size: Sequences of a batch of this rank.
        shuffle: Whether their order changes with each epoch.
        seed: Of that order.
        rewritten: A batch as it is trained on; as it is read if left out.
        widths: Of micro-batches.
    """
    sampler = dist.get_sampler(dataset, shuffle=shuffle, seed=seed)
    loader = ReadAhead(dataset, batch_size=device_batch_size, sampler=sampler, collate_fn=dataset.collate)
    return DataSpec(
        loader,
        batch_transforms=rewritten,
        split_batch=split_batch,  # pyright: ignore[reportArgumentType]  # Composer allows for fractions; ours is whole
        microbatch_transforms=widths.fit,
        get_num_tokens_in_batch=count_tokens,  # pyright: ignore[reportArgumentType]  # a dict, as Composer documents
    )
