"""Steps for answers: captured where a GPU can, else a model's own passes; of one batch at a time.

Answers are decoded batch after batch, each of as many rows and slots as it needs. What was captured for a batch is of
no use to one of another shape, and its cache may be most of the memory: it is let go of before the next is made.
"""

import sys
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from architectures.errors import UserError
from architectures.settings.kinds import HowAnswered
from eval.steps import captured
from eval.steps.fixed_steps import CannotMakeError, FixedSteps, new_row_cache
from eval.steps.sequencer import Feed, Opener, Sequencer, open_sequencer

KEY = "answer_steps"
MOST_OF_FREE = 0.75  # of a GPU's memory for a cache: prompts are read beside it


def answer_opener(model: PreTrainedModel, asked: HowAnswered) -> Opener:
    """What runs a model while it answers; on a GPU stderr says why its steps are not captured.

    Raises:
        UserError: If they are to be captured in any case, and cannot be.
    """
    if asked == "eager" or (asked == "auto" and model.device.type != "cuda"):
        return open_sequencer
    steps = captured.CapturedSteps()
    try:
        steps.require(model)
    except CannotMakeError as error:
        if asked == "captured":
            raise UserError(f"{error.reason} Set {KEY} to auto.") from error
        say(error.reason)
        return open_sequencer
    return BatchSteps(steps, spares_memory=asked == "auto")


class BatchSteps:
    """An Opener: captured steps, those of one batch after another.

    Args:
        steps: That are captured.
        spares_memory: Whether a batch whose cache is too large for what is free takes a model's own passes, whose cache
            grows with its texts.
    """

    def __init__(self, steps: FixedSteps, *, spares_memory: bool) -> None:
        self.steps, self.spares_memory = steps, spares_memory
        self.slot_bytes: int | None = None
        self.has_said = False

    def __call__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        *,
        capacity: int,
        vocab_size: int,
        feeds: Sequence[Feed] = (),
        goes_back: bool = True,
    ) -> Sequencer:
        """See eval.steps.sequencer.open_sequencer."""
        self.steps.forget_others(model, rows=len(prompts), capacity=capacity)
        opener: Opener = self.steps if self.fits(model, len(prompts), capacity) else open_sequencer
        return opener(model, prompts, capacity=capacity, vocab_size=vocab_size, feeds=feeds, goes_back=goes_back)

    def fits(self, model: PreTrainedModel, rows: int, capacity: int) -> bool:
        """Whether there is memory for a batch's cache, whole from the beginning; asked of those not there yet."""
        if not self.spares_memory or any(self.steps.free.values()):
            return True
        if self.slot_bytes is None:
            self.slot_bytes = bytes_per_slot(model)
        slots = self.steps.maker.capacity(capacity)
        needed, free = rows * slots * self.slot_bytes, free_bytes(model.device)
        if needed <= MOST_OF_FREE * free:
            return True
        if not self.has_said:
            say(
                f"{model.name_or_path}: {rows} rows of {slots} tokens take a cache of {needed / 2**30:.1f} GiB, and "
                f"{free / 2**30:.1f} are free; such batches are not captured. Fewer rows or new tokens would be."
            )
        self.has_said = True
        return False


@torch.inference_mode()
def bytes_per_slot(model: PreTrainedModel) -> int:
    """What one token of one row takes in a cache, as the model itself fills it."""
    cache = new_row_cache(model, rows=1, capacity=1)
    tensors = [*cache.keys, *cache.values]
    return sum(tensor.numel() * tensor.element_size() // tensor.shape[2] for tensor in tensors)


def free_bytes(device: torch.device) -> int:
    """What can still be allocated on a GPU: nobody's, or torch's own and unused."""
    of_nobody, _ = torch.cuda.mem_get_info(device)
    return of_nobody + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def say(reason: str) -> None:
    print(f"answers by eager steps, several times slower: {reason}", file=sys.stderr)
