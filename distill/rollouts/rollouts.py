"""What writes answers of training batches anew, and counts who wrote how many tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from composer import Callback, Logger, State
from composer.utils import dist
from torch import Tensor

from distill.data.batches import Example, collate
from distill.monitoring.phase_clock import PhaseClock
from distill.monitoring.step_times import ROLLOUTS
from distill.recipe.sections.samples import SamplesConfig
from distill.recipe.sections.times import split_time
from distill.rollouts.sequences import Place, places_in
from distill.rollouts.writing import Asked, Writer, Written, written_by, written_by_both

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
