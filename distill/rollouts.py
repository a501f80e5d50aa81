"""On-policy responses: training batches whose responses the student, or student and teacher together, regenerate.

Shape suffixes used in this file:
    B = rows or sequences of the batch, T = tokens of the longest sequence in it, D = draws
"""

import zlib
from collections.abc import Mapping, Sequence
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
from eval.decoding.kv_cache import takes_rows
from eval.decoding.sampling import Limits, Sampling, Seeds, stream
from eval.decoding.speculative import Batch, DecodingRequest, Streams, collected, decode_steps


@dataclass(frozen=True)
class Place:
    """A sequence, and one of its responses that may be regenerated.

    Attributes:
        turn: Index of the response, drawn uniformly.
        row_seed: Of all draws in its generation.
        coin: In [0, 1): regenerated if below the probability of a sequence.
    """

    example: Example
    turn: int
    row_seed: int
    coin: float

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return self.example.input_ids[: self.example.spans[self.turn][0] + 1]

    def with_response(self, token_ids: Sequence[int]) -> Example:
        """Return the sequence with another response, truncated after it: later turns followed the old one."""
        *input_ids, last_id = (*self.prompt_ids, *token_ids)
        span = (len(self.prompt_ids) - 1, len(input_ids))
        return Example(tuple(input_ids), last_id, (*self.example.spans[: self.turn], span), task=self.example.task)


def places_in(batch: Mapping[str, Tensor], *, seed: int, batch_number: int) -> list[Place]:
    """Draw the place of each sequence; the draws depend only on the seed, the batch number and the sequence."""
    return [drawn(example, seed=seed, batch_number=batch_number) for example in examples_of(batch)]


def drawn(example: Example, *, seed: int, batch_number: int) -> Place:
    ids = np.array([*example.input_ids, example.last_id], dtype=np.int64)
    generator = np.random.default_rng([seed, batch_number, zlib.crc32(ids.tobytes())])
    row_seed = int(generator.integers(2**63))
    return Place(example, int(generator.integers(len(example.spans))), row_seed, float(generator.random()))


def examples_of(batch: Mapping[str, Tensor]) -> list[Example]:
    columns = (batch[name].tolist() for name in ("input_ids", "next_ids", "keep", "task"))
    lengths = batch["attention_mask"].sum(dim=1).tolist()
    return [
        Example(tuple(ids[:length]), following[length - 1], spans_of(kept[:length]), task=task)
        for length, ids, following, kept, [task] in zip(lengths, *columns, strict=True)
    ]


def spans_of(kept: Sequence[bool]) -> tuple[tuple[int, int], ...]:
    """Return (first, end) of every contiguous range of kept positions."""
    edges = np.flatnonzero(np.diff([False, *kept, False])).tolist()
    return tuple(zip(edges[::2], edges[1::2], strict=True))


STUDENT_DRAWS, TEACHER_DRAWS, COINS = Seeds.of(0), Seeds.of(1), 6  # independent random streams


@dataclass(frozen=True)
class RolloutPrompt:
    """Prompt of a rollout: token ids, the seed of all its draws, and the maximum response length."""

    token_ids: tuple[int, ...]
    row_seed: int
    max_new_tokens: int


@dataclass(frozen=True)
class Generation:
    """Sampling, stop tokens, and vocabulary size: only ids below it are generated."""

    sampling: Sampling
    stop_ids: frozenset[int]
    vocab_size: int

    def request(self, prompts: Sequence[RolloutPrompt], max_new_tokens: int) -> tuple[DecodingRequest, list[int]]:
        """Return prompts of equal maximum length as a decoder takes them, and their seeds."""
        limits = Limits(max_new_tokens, self.stop_ids)
        ids = [prompt.token_ids for prompt in prompts]
        request = DecodingRequest(ids, limits, self.sampling, target_vocab=self.vocab_size)
        return request, [prompt.row_seed for prompt in prompts]


@dataclass(frozen=True)
class Rollout:
    """A new response, including its stop token if any, and the number of tokens that the student generated."""

    token_ids: tuple[int, ...]
    by_student: int


def generate_rollouts(
    student: PreTrainedModel,
    teacher: PreTrainedModel | None,
    prompts: Sequence[RolloutPrompt],
    generation: Generation,
    *,
    probability: float,
) -> list[Rollout]:
    """Generate a response to each prompt, in order; both models read all tokens.

    The student generates each token with this probability, or every token without a teacher.
    """
    rollouts: dict[int, Rollout] = {}
    together = teacher is None or all(takes_rows(lm, goes_back=False) for lm in (student, teacher))
    for limit in sorted({prompt.max_new_tokens for prompt in prompts}):
        indices = [index for index, prompt in enumerate(prompts) if prompt.max_new_tokens == limit]
        for rows in [indices] if together else [[index] for index in indices]:
            some = [prompts[row] for row in rows]
            if teacher is None:
                request, seeds = generation.request(some, limit)
                decoded = collected(decode_steps([student], request, seeds=STUDENT_DRAWS, row_seeds=seeds), len(rows))
                made = [Rollout(each.token_ids, by_student=len(each.token_ids)) for each in decoded]
            else:
                made = mix_tokens(student, teacher, some, generation, probability=probability)
            rollouts |= dict(zip(rows, made, strict=True))
    return [rollouts[index] for index in range(len(prompts))]


@torch.inference_mode()
def mix_tokens(
    student: PreTrainedModel,
    teacher: PreTrainedModel,
    prompts: Sequence[RolloutPrompt],
    generation: Generation,
    *,
    probability: float,
) -> list[Rollout]:
    """Decode prompts of equal maximum length together; a coin per token decides which model's token is used."""
    limit, batches = prompts[0].max_new_tokens, []
    for lm, draws in ((student, STUDENT_DRAWS), (teacher, TEACHER_DRAWS)):
        request, row_seeds = generation.request(prompts, limit)
        batches.append(Batch([lm], request, Streams.of(request, draws, row_seeds, lm.device), range(len(prompts))))
    of_student, of_teacher = batches
    coins_BD = stream(COINS, [prompt.row_seed for prompt in prompts], limit, torch.device("cpu"))
    is_students_BD, rollouts = coins_BD < probability, {}
    for step in range(limit):
        if not of_student.texts:
            break
        is_students_B = is_students_BD[[text.index for text in of_student.texts], step].to(of_student.device)
        (student_tokens_B, _), (teacher_tokens_B, _) = of_student.next_tokens(), of_teacher.next_tokens()
        tokens_B = student_tokens_B.where(is_students_B, teacher_tokens_B)

        # Both read the token; steps and retired sequences are generators, of which the student's are used.
        for batch in batches:
            for _ in batch.append(tokens_B):
                pass
        for index, decoded in of_student.retire():
            by_student = int(is_students_BD[index, : len(decoded.token_ids)].sum())
            rollouts[index] = Rollout(decoded.token_ids, by_student)
        for _ in of_teacher.retire():
            pass
    return [rollouts[index] for index in range(len(prompts))]


TEACHER_TOKENS, STUDENT_TOKENS = "samples/teacher_tokens", "samples/student_tokens"


@dataclass(eq=False)
class Rollouts(Callback):
    """Regenerates responses of each training batch with the student's current weights.

    `replace_responses` is the trainer's `batch_transforms`: it runs before Composer counts the batch, so that times in
    tokens count the tokens trained on, and before input ids are replaced by the unknown id.

    Args:
        teacher: Generates part of the tokens; None if only the student does.
        probability: That the student generates a sequence, or with a teacher a token.
        max_new_tokens: Of a response.
        max_seq_len: Of a whole sequence.
    """

    student: PreTrainedModel
    teacher: PreTrainedModel | None
    generation: Generation
    probability: float
    max_new_tokens: int
    max_seq_len: int
    seed: int
    clock: PhaseClock
    state: State | None = None
    logger: Logger | None = None
    teacher_tokens: int = 0  # so far, over all processes
    student_tokens: int = 0

    def init(self, state: State, logger: Logger) -> None:
        self.state, self.logger = state, logger

    def replace_responses(self, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return a batch with new responses; count tokens over all processes."""
        assert self.state is not None, "Composer calls init first"
        assert self.logger is not None
        with self.clock.phase(ROLLOUTS):
            new, by_student = self.generated(batch, self.state.timestamp.batch.value)
        counts = torch.tensor([int(new["keep"].sum()) - by_student, by_student])
        counts = self.state.device.tensor_to_device(counts)
        dist.all_reduce(counts, reduce_operation="SUM")
        self.teacher_tokens += int(counts[0])
        self.student_tokens += int(counts[1])
        self.logger.log_metrics(self.state_dict())
        return new

    def generated(self, batch: Mapping[str, Tensor], batch_number: int) -> tuple[Mapping[str, Tensor], int]:
        places = places_in(batch, seed=self.seed, batch_number=batch_number)
        of_sequence = self.probability if self.teacher is None else float(self.probability > 0)
        chosen = [index for index, place in enumerate(places) if place.coin < of_sequence]
        if not chosen:
            return batch, 0
        prompts = [
            RolloutPrompt(ids, places[index].row_seed, min(self.max_new_tokens, self.max_seq_len - len(ids)))
            for index in chosen
            for ids in [places[index].prompt_ids]
        ]

        # Without dropout; training mode is restored afterwards.
        was_training = self.student.training
        self.student.eval()
        try:
            rollouts = generate_rollouts(
                self.student, self.teacher, prompts, self.generation, probability=self.probability
            )
        finally:
            self.student.train(was_training)

        examples = [place.example for place in places]
        for index, rollout in zip(chosen, rollouts, strict=True):
            examples[index] = places[index].with_response(rollout.token_ids)
        return collate(examples), sum(rollout.by_student for rollout in rollouts)

    def state_dict(self) -> dict[str, Any]:
        return {TEACHER_TOKENS: self.teacher_tokens, STUDENT_TOKENS: self.student_tokens}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.teacher_tokens, self.student_tokens = state[TEACHER_TOKENS], state[STUDENT_TOKENS]
