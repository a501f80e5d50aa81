"""Datasets of recorded responses, and their dataloaders: sharded over ranks, prefetched, split into micro-batches.

Shape suffixes used in this file:
    B = sequences in the batch
    T = tokens of the longest sequence in it
"""

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from composer import DataSpec
from composer.utils import dist
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import DataLoader

from architectures.errors import UserError
from architectures.hub import read_config
from architectures.settings import command_of
from architectures.vocabulary import CONFIG_KEY, DRAFT_VOCABULARY_NAME, read_draft_vocabulary
from distill.data.batches import ResponseDataset
from distill.export import vocab_size_of
from distill.recipe.recipe import Recipe
from distill.run import Run, shape_of
from distill.teacher_cache import CachedResponses, TeacherCache
from eval.models import require_same_tokenizer
from eval.responses import read_traces, require_known_ids

GPU_PADDING = 64  # tokens: at most 32 widths of sequences of 2,048
BATCHES_AHEAD = 2  # prefetched in addition to the current one


def read_datasets(
    run: Run,
) -> tuple[ResponseDataset | CachedResponses | None, ResponseDataset | CachedResponses]:
    """Read what a recipe trains on and evaluates on, with the cached teacher's outputs if the teacher is cached.

    The first is None if the recipe trains on text or on served requests, which are read as they are trained on.

    Raises:
        UserError: If the draft has another tokenizer or is too short, a response's ids do not exist in a model, no
            response fits the length limit, or the draft outputs none of their ids.
    """
    config = run.recipe.distill
    require_same_tokenizer(run.target, run.init.path)
    run.reject_long_texts(run.init.path)
    if config.train_on == "text" or config.online is not None:
        train_set, eval_set = None, read_split(run, "eval")
    else:
        train_set, eval_set = read_responses(run)
        require_learnable(train_set, run.init.path)
    if not config.teacher.is_cache:
        return train_set, eval_set
    cached = {
        name: None if responses is None else CachedResponses(responses, TeacherCache(run.teacher_cache.path, name))
        for name, responses in (("train", train_set), ("eval", eval_set))
    }
    assert cached["eval"] is not None
    return cached["train"], cached["eval"]


def read_responses(run: Run) -> tuple[ResponseDataset, ResponseDataset]:
    """Read the responses to train on and to evaluate on.

    Given conversations are trained on whole, but evaluated response by response; encoder-decoder models read each
    prompt separately, so they are also trained response by response.

    Raises:
        UserError: If no response is left of either, or a model that reads them has no row for one of their tokens.
    """
    joined = run.recipe.data.responses == "given" and not shape_of(run.target).encoder_layers
    return read_split(run, "train", joined=joined), read_split(run, "eval")


def read_split(run: Run, name: str, *, joined: bool = False) -> ResponseDataset:
    """Read the responses of one split, and print the effect of the length limit.

    Args:
        name: "train" or "eval".
        joined: If True, the responses of a conversation form one sequence.

    Raises:
        UserError: If no response is left, or a model that reads them has no row for one of their tokens.
    """
    folder, max_seq_len = run.data.path, run.recipe.data.max_seq_len
    traces = read_traces(folder, name)
    require_known_ids((trace.token_ids for trace in traces), folder, name, vocab_sizes(run))
    learned = ResponseDataset.of_conversations if joined else ResponseDataset
    dataset = learned(traces, max_seq_len=max_seq_len)
    counts = dataset.counts
    if dist.get_global_rank() == 0:
        print(
            f"{name}: {counts.responses} responses with {counts.response_tokens} tokens"
            f"{'' if len(dataset) == counts.responses else f' in {len(dataset)} sequences'}; "
            f"data.max_seq_len={max_seq_len} cut {counts.cut} of them and left out {counts.left_out}.",
            file=sys.stderr,
        )
    if not counts.responses:
        raise UserError(
            f"{folder}: no {name} response fits data.max_seq_len={max_seq_len}. "
            f"Raise it, or give shorter prompts, and run {command_of('generate')} again."
        )
    return dataset


def require_learnable(train_set: ResponseDataset, init: Path) -> None:
    """Raise UserError if the draft's head has a row for none of the tokens that are to be learned."""
    if CONFIG_KEY not in read_config(init):
        return
    output_ids = set(read_draft_vocabulary(init).ids)
    if not any(token in output_ids for example in train_set.examples for token in example.response_ids):
        raise UserError(
            f"{init / DRAFT_VOCABULARY_NAME}: none of its {len(output_ids)} ids occurs in the training responses. "
            "Count the ids in these responses (architecture.vocabulary.from)."
        )


def vocab_sizes(run: Run) -> dict[Path, int]:
    """Return the vocabulary size of the target, and of <run>/init if it exists, by directory."""
    readers = [run.target, *([run.init.path] if run.init.path.is_dir() else [])]
    return {folder: vocab_size_of(folder) for folder in readers}


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


def padding_for(recipe: Recipe) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
    """Return the transform that gives the micro-batches of a recipe their width."""
    return partial(cut_padding, multiple=padding_multiple(), longest=recipe.data.max_seq_len)


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
    fit: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = cut_padding,
) -> DataSpec:
    """Build the data of Composer's trainer: this rank's share of the dataset, prefetched.

    The last, smaller batch is kept. If the number of ranks does not divide the dataset, the sampler repeats up to
    ranks - 1 examples at the end of an epoch; Composer drops these repeats from evaluations.

    Args:
        device_batch_size: Sequences per batch of this rank.
        rewritten: Transforms a batch before training.
        fit: Transforms a micro-batch.
    """
    sampler = dist.get_sampler(dataset, shuffle=shuffle, seed=seed)
    loader = ReadAhead(dataset, batch_size=device_batch_size, sampler=sampler, collate_fn=dataset.collate)
    return DataSpec(
        loader,
        batch_transforms=rewritten,
        split_batch=split_batch,  # pyright: ignore[reportArgumentType]  # sizes here are never fractions
        microbatch_transforms=fit,
        get_num_tokens_in_batch=count_tokens,  # pyright: ignore[reportArgumentType]  # a dict, as Composer documents
    )
