"""Answered prompts as batches of token ids, padded on the right, with the positions that are learned marked.

Shape suffixes used in this file:
    B = sequences in the batch, T = tokens of the longest sequence in it

A batch is {"input_ids": ids_BT, "attention_mask": real_BT, "keep": keep_BT, "next_ids": next_BT}. `keep` is True at
positions that predict a token of an answer: from the last token before it to the last but one of the answer itself.
`next_ids` is the token that follows each position. `task` is task_B1, the index of each prompt's task among the
dataset's tasks. `prompt_len` is prompt_len_B1, the tokens before the first answer, which an encoder reads where the
model has one; its decoder then reads a start token in the place of the last of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath

import torch
from torch import Tensor
from torch.utils.data import Dataset

from eval.answers.traces import Trace, continues

PAD_ID = 0  # any id will do: nothing attends to padding and nothing is learned there


@dataclass(frozen=True)
class Example:
    """One sequence to train on: an answered prompt, or a conversation with several answers in it."""

    input_ids: tuple[int, ...]  # all tokens but the last, which predicts nothing
    last_id: int  # that last token, of the last answer
    spans: tuple[tuple[int, int], ...]  # (first, end) of the positions that predict each answer, in order
    task: int = 0  # index of the prompt's task among the dataset's
    begins: int = 0  # tokens before the first answer, where the first span begins later than it does; else 0

    @property
    def num_kept(self) -> int:
        """Answer tokens, and so positions that are learned."""
        return sum(end - first for first, end in self.spans)

    @property
    def prompt_len(self) -> int:
        """Tokens before the first answer."""
        return self.begins or (self.spans[0][0] + 1 if self.spans else len(self.input_ids))

    @cached_property
    def all_ids_T(self) -> Tensor:  # noqa: N802  # a shape
        """Every token, the last included; made once, since a tuple takes longer to read than a batch to lay out."""
        return torch.tensor([*self.input_ids, self.last_id])

    @property
    def answer_ids(self) -> Iterator[int]:
        """The tokens that are learned."""
        ids = (*self.input_ids, self.last_id)
        return (token for first, end in self.spans for token in ids[first + 1 : end + 1])


@dataclass(frozen=True)
class LengthCounts:
    """What the limit on length did to the answers."""

    answers: int  # trained on
    answer_tokens: int  # of those
    cut: int  # answers shortened, a part of `answers`
    left_out: int  # prompts that leave no space for an answer


class AnswerDataset(Dataset[Example]):
    """Answered prompts, none longer than max_seq_len tokens."""

    def __init__(self, traces: Sequence[Trace], *, max_seq_len: int):
        self.examples: list[Example] = []
        self.tasks = tuple(sorted({task_of(trace.source) for trace in traces}))
        num_cut = 0
        for trace in traces:
            free_tokens = max_seq_len - len(trace.prompt_ids)
            if free_tokens < 1:
                continue
            answer_ids = trace.answer_ids[:free_tokens]
            num_cut += len(answer_ids) < len(trace.answer_ids)
            *input_ids, last_id = (*trace.prompt_ids, *answer_ids)
            span = (len(trace.prompt_ids) - 1, len(input_ids))
            task = self.tasks.index(task_of(trace.source))
            self.examples.append(Example(tuple(input_ids), last_id, (span,), task=task))
        self.counts = LengthCounts(
            answers=len(self.examples),
            answer_tokens=sum(example.num_kept for example in self.examples),
            cut=num_cut,
            left_out=len(traces) - len(self.examples),
        )

    @classmethod
    def of_conversations(cls, traces: Sequence[Trace], *, max_seq_len: int) -> "AnswerDataset":
        """The same answers, those of one conversation in one sequence wherever each turn continues the one before."""
        dataset = cls(traces, max_seq_len=max_seq_len)
        dataset.examples = join_turns(dataset.examples)
        return dataset

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Example:
        return self.examples[index]

    @staticmethod
    def collate(examples: Sequence[Example]) -> dict[str, Tensor]:
        return collate(examples)


def join_turns(examples: Sequence[Example]) -> list[Example]:
    """The examples, each that begins with all of the one before it joined to that one.

    Every answer token is predicted once, after the very tokens it was predicted after. A turn whose template shows
    the earlier ones otherwise than they were said begins a sequence of its own.
    """
    joined: list[Example] = []
    for example in examples:
        spans = example.spans
        if joined and continues((*joined[-1].input_ids, joined[-1].last_id), example.input_ids):
            spans = (*joined.pop().spans, *spans)
        joined.append(replace(example, spans=spans))
    return joined


def task_of(source: str) -> str:
    """The file or data set that a prompt's row came from: "gsm8k" of "a/gsm8k.jsonl:3" and of "gsm8k[test]:3"."""
    path = PurePath(source.rsplit(":", 1)[0].split("[", 1)[0])
    return path.name.split(".")[0] if path.suffix else "-".join(path.parts)


def collate(examples: Sequence[Example]) -> dict[str, Tensor]:
    """One batch of examples, padded on the right to the longest."""
    lengths_B1 = torch.tensor([[len(example.input_ids)] for example in examples])
    positions_T = torch.arange(int(lengths_B1.max()))
    real_BT = positions_T < lengths_B1
    return {
        "input_ids": padded([example.all_ids_T[:-1] for example in examples]),
        "attention_mask": real_BT,
        "keep": marked([example.spans for example in examples], width=len(positions_T)),
        "next_ids": padded([example.all_ids_T[1:] for example in examples]),
        "task": torch.tensor([[example.task] for example in examples]),
        "prompt_len": torch.tensor([[example.prompt_len] for example in examples]),
    }


def marked(spans: Sequence[Sequence[tuple[int, int]]], *, width: int) -> Tensor:
    """keep_BT, True within the spans of each sequence."""
    keep_BT = torch.zeros(len(spans), width, dtype=torch.bool)
    for keep_T, of_sequence in zip(keep_BT, spans, strict=True):
        for first, end in of_sequence:
            keep_T[first:end] = True
    return keep_BT


def padded(rows: Sequence[Tensor]) -> Tensor:
    """Rows of ids, each padded on the right to the longest."""
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=PAD_ID)
