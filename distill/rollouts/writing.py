"""Answers written by one model, or by two of which a coin chooses at every token.

Shape suffixes used in this file:
    B = rows, D = draws
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from eval.decoding.batch import Batch
from eval.decoding.sampling import Sampling
from eval.decoding.speculative import collected, decode_steps
from eval.decoding.texts import Limits, Seeds, stream
from eval.decoding.wanted import Streams, Wanted
from eval.steps.sequencer import takes_rows

STUDENT_DRAWS, TEACHER_DRAWS, COINS = Seeds.of(0), Seeds.of(1), 6  # streams that share nothing


@dataclass(frozen=True)
class Writer:
    """A model that writes, and how it chooses tokens."""

    lm: PreTrainedModel
    sampling: Sampling


@dataclass(frozen=True)
class Asked:
    """Prompts to be answered.

    Attributes:
        prompts: Token ids, each at least one.
        row_seeds: One per prompt, on which all of its draws depend and nothing else.
        most_tokens: Of each answer, at least one.
        stop_ids: Tokens that end an answer and are its last.
        vocab_size: Only ids below are said.
    """

    prompts: Sequence[tuple[int, ...]]
    row_seeds: Sequence[int]
    most_tokens: Sequence[int]
    stop_ids: frozenset[int]
    vocab_size: int

    def by_length(self) -> Iterator[tuple[list[int], Limits]]:
        """Indices of the prompts whose answers may have as many tokens, with that limit."""
        for most in sorted(set(self.most_tokens)):
            indices = [index for index, each in enumerate(self.most_tokens) if each == most]
            yield indices, Limits(most, self.stop_ids)

    def of(self, indices: Sequence[int], limits: Limits, sampling: Sampling) -> tuple[Wanted, list[int]]:
        """Some of the prompts as a decoder wants them, and their seeds."""
        prompts = [self.prompts[index] for index in indices]
        wanted = Wanted(prompts, limits, sampling, target_vocab=self.vocab_size)
        return wanted, [self.row_seeds[index] for index in indices]


@dataclass(frozen=True)
class Written:
    """An answer.

    Attributes:
        token_ids: The stop token included if one ended it.
        by_student: How many of them the student wrote.
    """

    token_ids: tuple[int, ...]
    by_student: int


def written_by(student: Writer, asked: Asked) -> list[Written]:
    """Answers that the student writes alone, one for each prompt, in their order."""
    answers: dict[int, Written] = {}
    for indices, limits in asked.by_length():
        wanted, seeds = asked.of(indices, limits, student.sampling)
        steps = decode_steps([student.lm], wanted, seeds=STUDENT_DRAWS, row_seeds=seeds)
        for index, decoded in zip(indices, collected(steps, len(indices)), strict=True):
            answers[index] = Written(decoded.token_ids, by_student=len(decoded.token_ids))
    return [answers[index] for index in range(len(asked.prompts))]


def written_by_both(student: Writer, teacher: Writer, asked: Asked, *, probability: float) -> list[Written]:
    """Answers in which a coin says at every token who writes it; both read whatever was written.

    Args:
        student: Writes a token with this probability.
        teacher: Writes all others.
        asked: The prompts.
        probability: In [0, 1].

    Returns:
        One for each prompt, in their order.
    """
    answers: dict[int, Written] = {}
    together = all(takes_rows(writer.lm, goes_back=False) for writer in (student, teacher))
    for indices, limits in asked.by_length():
        for rows in [indices] if together else [[index] for index in indices]:
            texts = mixed_texts(student, teacher, asked, rows, limits, probability=probability)
            answers |= dict(zip(rows, texts, strict=True))
    return [answers[index] for index in range(len(asked.prompts))]


@torch.inference_mode()
def mixed_texts(
    student: Writer, teacher: Writer, asked: Asked, rows: Sequence[int], limits: Limits, *, probability: float
) -> list[Written]:
    """The answers to some prompts that are decoded together."""
    ours, theirs = (
        batch_of(writer, asked, rows, limits, seeds)
        for writer, seeds in ((student, STUDENT_DRAWS), (teacher, TEACHER_DRAWS))
    )
    coins_BD = stream(COINS, [asked.row_seeds[row] for row in rows], limits.max_new_tokens, torch.device("cpu"))
    is_students_BD, answers = coins_BD < probability, {}
    for step in range(limits.max_new_tokens):
        if not ours.texts:
            break
        is_students_B = is_students_BD[[text.index for text in ours.texts], step].to(ours.device)
        tokens_B = chosen(ours, theirs, is_students_B)
        for batch in (ours, theirs):
            for _ in batch.append(tokens_B):
                pass
        for index, decoded in ours.retire():
            by_student = int(is_students_BD[index, : len(decoded.token_ids)].sum())
            answers[index] = Written(decoded.token_ids, by_student)
        for _ in theirs.retire():
            pass
    return [answers[index] for index in range(len(rows))]


def chosen(ours: Batch, theirs: Batch, is_students_B: Tensor) -> Tensor:
    """tokens_B of the next step: both models read it, whoever of them writes."""
    (our_tokens_B, _), (their_tokens_B, _) = ours.next_tokens(), theirs.next_tokens()
    return our_tokens_B.where(is_students_B, their_tokens_B)


def batch_of(writer: Writer, asked: Asked, rows: Sequence[int], limits: Limits, seeds: Seeds) -> Batch:
    """A writer that has read some prompts."""
    wanted, row_seeds = asked.of(rows, limits, writer.sampling)
    streams = Streams.of(wanted, seeds, row_seeds, writer.lm.device)
    return Batch([writer.lm], wanted, streams, range(len(rows)))
