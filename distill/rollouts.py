"""Answers of training batches written anew by the student, or by student and teacher token by token.

Shape suffixes used in this file:
    B = rows or sequences of the batch, T = tokens of the longest sequence in it, D = draws
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from composer import Callback, Logger, State
from composer.utils import dist
from torch import Tensor
from transformers import PreTrainedModel

from distill.callbacks import ROLLOUTS, PhaseClock
from distill.data.batches import Example, collate
from distill.recipe.sections.samples import SamplesConfig
from distill.recipe.sections.times import split_time
from eval.decoding.kv_cache import takes_rows
from eval.decoding.sampling import Sampling
from eval.decoding.speculative import Batch, Streams, Wanted, collected, decode_steps
from eval.decoding.texts import Limits, Seeds, stream


@dataclass(frozen=True)
class Place:
    """A sequence, and the answer in it that may be written anew.

    Attributes:
        example: The sequence.
        turn: Which of its answers: of a conversation with several any is as likely as another.
        row_seed: Of everything that is drawn while it is written.
        coin: In [0, 1): the student writes it where the probability of a sequence is above.
    """

    example: Example
    turn: int
    row_seed: int
    coin: float

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """Everything before the answer."""
        return self.example.input_ids[: self.example.spans[self.turn][0] + 1]

    def with_answer(self, token_ids: Sequence[int]) -> Example:
        """The sequence with another answer at this place, and nothing behind it: that followed another one."""
        *input_ids, last_id = (*self.prompt_ids, *token_ids)
        span = (len(self.prompt_ids) - 1, len(input_ids))
        return Example(tuple(input_ids), last_id, (*self.example.spans[: self.turn], span), task=self.example.task)


def places_in(batch: Mapping[str, Tensor], *, seed: int, batch_number: int) -> list[Place]:
    """The place of each sequence; what is drawn depends on the seed, the batch's number and the sequence alone.

    Args:
        batch: As distill.data.batches.collate makes it.
        seed: Of the training.
        batch_number: Batches trained before this one.
    """
    return [drawn(example, seed=seed, batch_number=batch_number) for example in examples_of(batch)]


def drawn(example: Example, *, seed: int, batch_number: int) -> Place:
    """The place of one sequence."""
    ids = np.array([*example.input_ids, example.last_id], dtype=np.int64)
    generator = np.random.default_rng([seed, batch_number, zlib.crc32(ids.tobytes())])
    row_seed = int(generator.integers(2**63))
    return Place(example, int(generator.integers(len(example.spans))), row_seed, float(generator.random()))


def examples_of(batch: Mapping[str, Tensor]) -> list[Example]:
    """The sequences that a batch was made of."""
    columns = (batch[name].tolist() for name in ("input_ids", "next_ids", "keep", "task"))
    lengths = batch["attention_mask"].sum(dim=1).tolist()
    return [
        Example(tuple(ids[:length]), following[length - 1], spans_of(kept[:length]), task=task)
        for length, ids, following, kept, [task] in zip(lengths, *columns, strict=True)
    ]


def spans_of(kept: Sequence[bool]) -> tuple[tuple[int, int], ...]:
    """(first, end) of every run of positions that are kept."""
    edges = np.flatnonzero(np.diff([False, *kept, False])).tolist()
    return tuple(zip(edges[::2], edges[1::2], strict=True))


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


TEACHER_TOKENS, STUDENT_TOKENS = "samples/teacher_tokens", "samples/student_tokens"


@dataclass(frozen=True)
class Writers:
    """Who writes, and what.

    Attributes:
        student: As it is at the moment.
        teacher: Where it writes tokens; None where its answers are those of the batch.
        stop_ids: Tokens that end an answer.
        vocab_size: Only ids below are said.
        max_new_tokens: Of an answer.
        max_seq_len: Of a whole sequence.
    """

    student: Writer
    teacher: Writer | None
    stop_ids: frozenset[int]
    vocab_size: int
    max_new_tokens: int
    max_seq_len: int

    def write(self, places: Sequence[Place], probability: float) -> list[Written]:
        """The answers at some places, by the student, or by both where the teacher writes tokens."""
        asked = Asked(
            [place.prompt_ids for place in places],
            [place.row_seed for place in places],
            [min(self.max_new_tokens, self.max_seq_len - len(place.prompt_ids)) for place in places],
            self.stop_ids,
            self.vocab_size,
        )
        was_training = self.student.lm.training
        self.student.lm.eval()
        try:
            if self.teacher is None:
                return written_by(self.student, asked)
            return written_by_both(self.student, self.teacher, asked, probability=probability)
        finally:
            self.student.lm.train(was_training)


class Rollouts(Callback):
    """Writes answers of each training batch anew, with the student's weights of the moment.

    Its `rewritten` is the trainer's `batch_transforms`: it runs before Composer counts the batch, so that times in
    tokens are of what is trained on, and before anything is shown to the student in place of its inputs.

    Args:
        config: Section distill.samples, of a source that writes.
        writers: Who writes.
        seed: Of the training.
        clock: By which the time is counted.
    """

    def __init__(self, config: SamplesConfig, writers: Writers, *, seed: int, clock: PhaseClock):
        self.config = config
        self.writers = writers
        self.seed = seed
        self.clock = clock
        self.state: State | None = None
        self.logger: Logger | None = None
        self.teacher_tokens = self.student_tokens = 0  # so far, by all processes

    def init(self, state: State, logger: Logger) -> None:
        """Remember what tells the time and takes the counts."""
        self.state, self.logger = state, logger

    def rewritten(self, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """A batch with its new answers; counted."""
        assert self.state is not None, "the trainer has told of its state"
        assert self.logger is not None
        probability = self.config.probability_after(passed(self.state, split_time(self.config.ramp)[1]))
        with self.clock.phase(ROLLOUTS):
            examples, by_student = self.written(batch, probability, self.state.timestamp.batch.value)
        new = batch if by_student is None else collate(examples)
        self.count(int(new["keep"].sum()), by_student or 0, self.state)
        self.logger.log_metrics(
            {
                TEACHER_TOKENS: self.teacher_tokens,
                STUDENT_TOKENS: self.student_tokens,
                "samples/probability": probability,
            }
        )
        return new

    def written(
        self, batch: Mapping[str, Tensor], probability: float, batch_number: int
    ) -> tuple[list[Example], int | None]:
        """The sequences with their new answers, and the student's tokens in them; None where nothing was written."""
        places = places_in(batch, seed=self.seed, batch_number=batch_number)
        chance = float(probability > 0) if self.writers.teacher is not None else probability
        chosen = [index for index, place in enumerate(places) if place.coin < chance]
        if not chosen:
            return [], None
        examples = [place.example for place in places]
        answers = self.writers.write([places[index] for index in chosen], probability)
        for index, answer in zip(chosen, answers, strict=True):
            examples[index] = places[index].with_answer(answer.token_ids)
        return examples, sum(answer.by_student for answer in answers)

    def count(self, num_tokens: int, by_student: int, state: State) -> None:
        """Add a batch's answer tokens to those so far, over all processes."""
        counts = state.device.tensor_to_device(torch.tensor([num_tokens - by_student, by_student]))
        dist.all_reduce(counts, reduce_operation="SUM")
        teacher_tokens, student_tokens = counts.tolist()
        self.teacher_tokens += teacher_tokens
        self.student_tokens += student_tokens

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training must know."""
        return {"teacher_tokens": self.teacher_tokens, "student_tokens": self.student_tokens}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what an earlier session counted."""
        self.teacher_tokens, self.student_tokens = state["teacher_tokens"], state["student_tokens"]


def passed(state: State, unit: str) -> float:
    """How much of the training has passed, in its own length or in batches, sequences or tokens."""
    if unit == "dur":
        elapsed = state.get_elapsed_duration()
        return 0.0 if elapsed is None else float(elapsed)
    return float(state.timestamp.get(unit).value)
