"""The teacher reads every answer once: the states that a cache is made of where none were kept.

Shape suffixes used in this file:
    B = sequences in the batch, T = tokens per sequence; A = answer tokens, one row each; H = hidden width
"""

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.caching.capture import CaptureSettings, Split
from distill.data.batches import Example, collate
from distill.losses.answer_logits import AnswerLogits, head_of
from distill.losses.chunked import Head
from distill.teacher_cache.contents import load_head
from eval.decoding.kv_cache import without_cudnn
from eval.models.loading import default_device
from eval.targets.loading import load_target
from eval.targets.passes import Pass, run_passes


class TargetReading:
    """The teacher reads the answers; it is loaded when it is first asked."""

    def __init__(self, target: Path, settings: CaptureSettings):
        self.target = target
        self.settings = settings

    @cached_property
    def lm(self) -> PreTrainedModel:
        return load_target(self.target, dtype=self.settings.dtype, holding=self.settings.holding)

    @cached_property
    def reads(self) -> AnswerLogits:
        return AnswerLogits(self.lm)

    def head(self) -> Head:
        """See StateSource; of a teacher that is not whole it is read for itself."""
        if self.settings.holding.placement != "whole":
            return load_head(self.target, dtype=self.settings.dtype, device=default_device())
        return head_of(self.lm)

    def states(self, split: Split, answers: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
        """See StateSource; in the order of their lengths, so that a batch holds little padding."""
        ordered = sorted(answers, key=lambda answer: len(split.examples[answer].input_ids))
        starts = range(0, len(ordered), self.settings.batch_size)
        batches = [ordered[start : start + self.settings.batch_size] for start in starts]
        passes = [self.reading([split.examples[answer] for answer in batch]) for batch in batches]
        for batch, states in zip(batches, run_passes(self.lm, passes), strict=True):
            yield from zip(batch, states, strict=True)

    def reading(self, examples: Sequence[Example]) -> Pass[list[Tensor]]:
        """One batch, to be read when its turn comes."""
        width = max(len(example.input_ids) for example in examples)
        return Pass(partial(self.hidden_states, examples), len(examples), width)

    @torch.inference_mode()
    @without_cudnn()
    def hidden_states(self, examples: Sequence[Example]) -> list[Tensor]:
        """The last hidden states of one batch at the answers' positions, one hidden_AH for each example."""
        batch = collate(examples)
        ids_BT, keep_BT = batch["input_ids"].to(self.lm.device), batch["keep"].to(self.lm.device)
        hidden_AH = self.reads.hidden(ids_BT, keep_BT, prompt_len_B1=batch["prompt_len"].to(self.lm.device))
        return list(hidden_AH.split([example.num_kept for example in examples]))
