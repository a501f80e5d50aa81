"""The answers of a training, each with what a cache kept of the teacher, as batches.

Shape suffixes used in this file:
    B = sequences in the batch, M = answer tokens of the longest answer in it; A = answer tokens of all, one row each

A batch is one of distill/data/batches.py that also holds each tensor of the cache, under "teacher_" and its name:
rows_BM..., padded on the right. Row m of a sequence belongs to the m-th position that `keep` marks there. So a batch is
split by sequences like any other, and cutting it to the width of its sequences cuts no answer.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from distill.data.batches import AnswerDataset, Example, collate
from distill.teacher_cache.reader import TeacherCache

PREFIX = "teacher_"

Sample = tuple[Example, dict[str, Tensor]]


class CachedAnswers(Dataset[Sample]):
    """Answered prompts, each with the rows that a cache kept of its answer tokens.

    Args:
        answers: In the order in which the cache was written.
        cache: Of the same split.

    Raises:
        UserError: If the cache's rows belong to other answers.
    """

    def __init__(self, answers: AnswerDataset, cache: TeacherCache):
        cache.require_examples(answers.examples)
        self.answers = answers
        self.cache = cache

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, index: int) -> Sample:
        return self.answers[index], self.cache.rows(index)

    @staticmethod
    def collate(samples: Sequence[Sample]) -> dict[str, Tensor]:
        """One batch of examples and their rows, padded on the right to the longest sequence and the longest answer."""
        examples, rows = zip(*samples, strict=True)
        kept = {PREFIX + name: pad_sequence([each[name] for each in rows], batch_first=True) for name in rows[0]}
        return {**collate(examples), **kept}


def rows_in(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What was kept of the answers of a batch, sequence after sequence: one row of A for each position of `keep`.

    Where `unsaid` holds positions that were taken out of `keep` since, their rows are left out.
    """
    keep_BT, unsaid_BT = batch["keep"], batch.get("unsaid")
    answer_BT = keep_BT if unsaid_BT is None else keep_BT | unsaid_BT
    num_kept_B1 = answer_BT.sum(dim=1, keepdim=True)
    kept = {name.removeprefix(PREFIX): rows for name, rows in batch.items() if name.startswith(PREFIX)}
    rows = {
        name: rows_BM[torch.arange(rows_BM.shape[1], device=rows_BM.device) < num_kept_B1]
        for name, rows_BM in kept.items()
    }
    return rows if unsaid_BT is None else {name: each[keep_BT[answer_BT]] for name, each in rows.items()}
