"""Answers whose hidden states are kept: what a teacher's cache is made of without reading them once more."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from architectures.errors import UserError
from architectures.files.atomic import write_text
from eval.answers.asked_turns import Turn, num_turns
from eval.answers.earlier_answers import Earlier
from eval.answers.hidden_files import is_finite, new_hidden_file, read_states, require_states
from eval.answers.shards import hidden_path, shard_text
from eval.answers.traces import Trace, rows_of
from eval.decoding.answering import Answerer, Rendered
from eval.decoding.batch import Emitted
from eval.decoding.hidden_states import HiddenStates
from eval.decoding.texts import Decoded
from eval.models.loading import text_config


class StateKeeper(Answerer):
    """Answers as an Answerer does, in the same bytes, and writes the states they were chosen from beside them."""

    keeps_states: ClassVar[bool] = True

    @cached_property
    def states(self) -> HiddenStates:
        """Of the answers in work: those of one batch at most."""
        return HiddenStates(self.model)

    def decode(self, batch: Sequence[Rendered]) -> Iterator[Emitted | tuple[int, Decoded]]:
        """See Answerer."""
        return self.states.along(super().decode(batch), [turn.id for _, turn in batch])

    def is_written(self, path: Path) -> bool:
        """See Answerer; a shard without its states is not."""
        return super().is_written(path) and hidden_path(path).is_file()

    def write(self, path: Path, turns: Sequence[Turn]) -> Iterator[Trace]:
        """See Answerer.

        Raises:
            UserError: If a state is no number, or the shard is there and was answered otherwise.
        """
        traces = []
        with new_hidden_file(path, most_answers=num_turns(turns)) as file:
            for trace in self.answer(turns):
                file.add(trace.id, self.states_of(trace))
                traces.append(trace)
                yield trace
            content = shard_text(rows_of(traces))
            refuse_other_answers(path, content)
            file.finish(content.encode("utf-8"))
        write_text(content, path)

    def states_of(self, trace: Trace) -> Tensor:
        """hidden_AH of an answer that has ended, or was taken from earlier ones.

        Raises:
            UserError: If one of them is no number, or those of an earlier answer are gone or another's.
        """
        if trace.id in self.taken:
            return self.earlier_states(self.taken[trace.id])
        hidden_AH = self.states.take(trace.id)
        assert len(hidden_AH) == len(trace.answer_ids), "a state for every token"
        if not is_finite(hidden_AH):
            raise UserError(
                f"{trace.source}: not all of the target's hidden states of its answer are numbers in "
                f"{self.settings.dtype}. Set target.dtype to a type of a larger range, or use another target."
            )
        return hidden_AH

    def earlier_states(self, earlier: Earlier) -> Tensor:
        """hidden_AH of an answer as they stand beside its shard.

        Raises:
            UserError: If they are gone, damaged or another's.
        """
        answer, length = earlier.trace.id, len(earlier.trace.answer_ids)
        width = text_config(self.target).hidden_size
        require_states(earlier.shard, {answer: length}, width=width, dtype=self.settings.dtype)
        return read_states(earlier.shard, answer, length)


def refuse_other_answers(path: Path, content: str) -> None:
    """Raise UserError if a shard is there, from which a draft may have been made, and now came out otherwise."""
    if path.is_file() and path.read_text(encoding="utf-8") != content:
        raise UserError(
            f"{path}: answered again for hidden states that are missing, and otherwise than it stands there, as "
            "another machine or other versions do. Set distill.teacher.captured_while to reading, or delete this "
            "folder and what was made from it."
        )
