"""The recorded answers of a run, as requests in the order of a stream."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from composer.utils import dist

from architectures.errors import UserError
from distill.data.batches import AnswerDataset
from distill.requests.recorded import Recorded
from distill.run.run import Run
from distill.teacher_cache.reader import TeacherCache
from eval.answers.traces import Trace, read_traces
from eval.streams.stream import open_stream


@dataclass(frozen=True)
class RecordedAnswers(Sequence[Recorded]):
    """Requests in the order of the stream; an answer's states are read when it is asked for.

    Attributes:
        traces: The answers of the run, in the order of the cache.
        cache: What the target knew at each of their tokens.
        order: The source and the place among the traces of each request.
        max_seq_len: Tokens of prompt and answer at most.
    """

    traces: Sequence[Trace]
    cache: TeacherCache
    order: Sequence[tuple[str, int]]
    max_seq_len: int

    def __getitem__(self, request: int) -> Recorded:  # pyright: ignore[reportIncompatibleMethodOverride]  # no slices
        source, index = self.order[request]
        trace = self.traces[index]
        answer_ids = trace.answer_ids[: self.max_seq_len - len(trace.prompt_ids)]
        return Recorded(request, source, trace.prompt_ids, answer_ids, self.cache.rows(index)["hidden"])

    def __len__(self) -> int:
        return len(self.order)


def recorded_answers(run: Run) -> RecordedAnswers:
    """The stream's requests with the answers and states that the run's own stages made.

    Raises:
        UserError: As `order_of`; or if answers and states do not belong together.
    """
    folder, longest = run.data.path, run.recipe.data.max_seq_len
    traces = [trace for trace in read_traces(folder, "train") if len(trace.prompt_ids) < longest]
    cache = TeacherCache(run.teacher_cache.path, "train")
    cache.require_examples(AnswerDataset(traces, max_seq_len=longest).examples)
    return RecordedAnswers(traces, cache, order_of(run, traces), longest)


def order_of(run: Run, traces: Sequence[Trace]) -> list[tuple[str, int]]:
    """The source and the place among the traces of each request of the stream that is answered.

    Held-out prompts are not learned from, and a prompt that comes twice or is too long has no answer of its own: such
    requests are passed over, and counted.

    Raises:
        UserError: If none of the requests is answered.
    """
    online, folder = run.recipe.distill.online, run.data.path
    assert online is not None, "a recipe in online mode has it"
    answered = {trace.source: index for index, trace in enumerate(traces)}
    requests = list(open_stream(online.stream, seed=run.recipe.seed))
    order = [(each.source, answered[each.prompt.source]) for each in requests if each.prompt.source in answered]
    if not order:
        raise UserError(
            f"{folder}: holds answers to none of the {len(requests)} requests of distill.online.stream. Give the "
            "sources of data.prompts there, or set distill.requests.answers to live."
        )
    if (unanswered := len(requests) - len(order)) and dist.get_global_rank() == 0:
        print(
            f"{folder}: {unanswered} of {len(requests)} requests have no answer to learn from (held out, asked twice "
            "or too long), and are passed over.",
            file=sys.stderr,
        )
    return order
