"""Batches of answers as Composer's trainer reads them: shared by ranks, counted, and cut into micro-batches.

Shape suffixes used in this file:
    B = sequences in the batch, T = tokens of the longest sequence in it
"""

from collections.abc import Callable, Mapping

from composer import DataSpec
from composer.utils import dist
from torch import Tensor
from torch.utils.data import DataLoader

from distill.data.batches import AnswerDataset
from distill.teacher_cache.answers import CachedAnswers


def split_batch(batch: Mapping[str, Tensor], microbatch_size: int) -> list[dict[str, Tensor]]:
    """The batch in pieces of at most microbatch_size sequences; Composer's own warns when a batch is smaller."""
    pieces = {name: tensor_BT.split(microbatch_size) for name, tensor_BT in batch.items()}
    return [dict(zip(pieces, piece, strict=True)) for piece in zip(*pieces.values(), strict=True)]


def cut_padding(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The batch without the columns that are padding in every row: what a micro-batch keeps of its batch's width."""
    width = int(batch["attention_mask"].sum(dim=1).max())
    return {name: tensor_BT[:, :width] for name, tensor_BT in batch.items()}


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
) -> DataSpec:
    """What Composer's trainer reads: this rank's share of the dataset, and how to count and cut its batches.

    The last, smaller batch is kept. Where the number of ranks does not divide the dataset, the sampler repeats up to
    ranks - 1 examples at the end of an epoch; Composer drops these repeats from evaluations.

    Args:
        dataset: Read from.
        device_batch_size: Sequences of a batch of this rank.
        shuffle: Whether their order changes with each epoch.
        seed: Of that order.
        rewritten: A batch as it is trained on; as it is read if left out.
    """
    sampler = dist.get_sampler(dataset, shuffle=shuffle, seed=seed)
    loader = DataLoader(dataset, batch_size=device_batch_size, sampler=sampler, collate_fn=dataset.collate)
    return DataSpec(
        loader,
        batch_transforms=rewritten,
        split_batch=split_batch,  # pyright: ignore[reportArgumentType]  # Composer allows for fractions; ours is whole
        microbatch_transforms=cut_padding,
        get_num_tokens_in_batch=count_tokens,  # pyright: ignore[reportArgumentType]  # a dict, as Composer documents
    )
