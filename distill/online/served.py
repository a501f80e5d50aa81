"""Served requests on disk, and requests whose responses are recorded: how a draft would have served them.

A process keeps its requests in <run>/online/rank0: requests/00000012.safetensors, and a line in records.jsonl. The line
is written before the file, and the file is whole or absent: a request counts as served once its file is there, and
lines after the last such file are of requests that were in flight when the process was killed.

A lossless draft changes no token of a response, so drafts can be compared on responses that were recorded once. Of
greedy responses the replay is what decoding does. Of sampled ones it draws whether each token would have been accepted.

Shape suffixes used in this file:
    A = tokens of the response, H = width of the target's last hidden state, V = vocabulary entries
"""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from transformers import PreTrainedModel

from architectures.errors import UserError
from architectures.files import parsed, write_bytes, write_text
from distill.chunked_loss import Head
from distill.data.batches import AnswerDataset, Example
from distill.run import Run
from distill.teacher_cache import TeacherCache
from eval.decoding.sampling import Sampling
from eval.replay import Accepts, answer_logits, replay_answer, rule_name
from eval.responses import Trace, read_traces
from eval.stream import open_stream

Positions = Literal["rejected", "all"]
FIX = "Delete the run's directory `online`, and train again from its last checkpoint."


@dataclass(frozen=True, kw_only=True)
class RequestRecord:
    """How a draft did on one request: a line of records.jsonl.

    Attributes:
        request: Its place in the stream, from 0.
        source: The task, file or data set that it is from.
        updates: Updates that the draft which served it had had.
        alpha: Mean acceptance rate of this draft over all tokens of the response.
        tokens: Of the response.
        rounds: Verification steps.
        proposed: Drafted tokens.
        accepted: Of those.
        seconds: From the request to its last token; null where responses are replayed.
        answer_ids: The response.
    """

    request: int
    source: str
    updates: int
    alpha: float
    tokens: int
    rounds: int
    proposed: int
    accepted: int
    seconds: float | None
    answer_ids: tuple[int, ...]


RECORD = TypeAdapter(RequestRecord)


@dataclass(frozen=True)
class Served:
    """A response of the target as an update learns from it.

    Attributes:
        record: The request, its response, and how the draft did.
        prompt_ids: The prompt.
        mistakes: Places in the response of tokens in whose place another one was drafted. The bonus token of a fully
            accepted verification step is none: nothing was drafted there.
        hidden_AH: The input of the target's head behind each token of the response.
    """

    record: RequestRecord
    prompt_ids: tuple[int, ...]
    mistakes: tuple[int, ...]
    hidden_AH: Tensor

    @property
    def answer_ids(self) -> tuple[int, ...]:
        return self.record.answer_ids

    def places(self, positions: Positions) -> Sequence[int]:
        """Places in the response that are learned."""
        return self.mistakes if positions == "rejected" else range(len(self.answer_ids))

    def example(self, positions: Positions) -> Example:
        """As a sequence to train on: token i of the response is predicted where the token before it stands."""
        *input_ids, last_id = (*self.prompt_ids, *self.answer_ids)
        before = len(self.prompt_ids) - 1
        spans = tuple((before + place, before + place + 1) for place in self.places(positions))
        return Example(tuple(input_ids), last_id, spans, begins=len(self.prompt_ids))

    def states(self, positions: Positions) -> Tensor:
        """The hidden state for each position that is learned."""
        return self.hidden_AH[list(self.places(positions))]


def read_served(path: Path) -> Served:
    """One served request; raises UserError if the file is missing or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            record = RECORD.validate_json((file.metadata() or {})["record"])
            prompt_ids, mistakes = (tuple(file.get_tensor(name).tolist()) for name in ("prompt_ids", "mistakes"))
            return Served(record, prompt_ids, mistakes, file.get_tensor("hidden"))
    except (SafetensorError, OSError, KeyError, ValidationError) as error:
        raise UserError(f"{path}: damaged ({error}). {FIX}") from error


@dataclass(frozen=True)
class Journal:
    """The served requests of one process: request r of the stream is of process r modulo the number of processes.

    Attributes:
        folder: Of this process.
        rank: Of the process.
        world: Number of processes.
        interval: Requests between two updates, over all processes.
    """

    folder: Path
    rank: int
    world: int
    interval: int

    @property
    def own(self) -> int:
        """Requests of this process between two updates."""
        return self.interval // self.world

    def request(self, index: int) -> int:
        """The place in the stream of one of this process's requests, which count from 0."""
        return self.rank + self.world * index

    def of_update(self, update: int) -> list[int]:
        """The requests that an update learns, counting updates from 0."""
        return [self.request(index) for index in range(update * self.own, (update + 1) * self.own)]

    @property
    def records_file(self) -> Path:
        return self.folder / "records.jsonl"

    def path(self, request: int) -> Path:
        """The file of a request."""
        return self.folder / "requests" / f"{request:08d}.safetensors"

    def stored(self) -> list[int]:
        """The requests whose files are there, in the order of the stream."""
        return sorted(int(path.stem) for path in self.folder.glob("requests/*.safetensors"))

    def num_served(self) -> int:
        """Number of whole requests: those up to the newest file."""
        stored = self.stored()
        return (stored[-1] - self.rank) // self.world + 1 if stored else 0

    def begin(self) -> int:
        """Create the journal, or drop the lines of requests that were in flight; returns how many are served."""
        served = self.num_served()
        write_records(list(read_records(self.records_file))[:served], self.records_file)
        return served

    def write(self, served: Served) -> None:
        """Store a request, its line first."""
        record = json.dumps(asdict(served.record), ensure_ascii=False)
        with self.records_file.open("a", encoding="utf-8") as file:
            file.write(record + "\n")
        ids = {name: torch.tensor(getattr(served, name), dtype=torch.int64) for name in ("prompt_ids", "mistakes")}
        tensors = {**ids, "hidden": served.hidden_AH.contiguous()}
        write_bytes(save(tensors, metadata={"record": record}), self.path(served.record.request))

    def read(self, requests: Iterable[int]) -> list[Served]:
        """Served requests by their places in the stream."""
        return [read_served(self.path(request)) for request in requests]

    def forget(self, before: int) -> None:
        """Delete the files of earlier requests than one; the newest stays, because it marks how far serving came."""
        for request in self.stored()[:-1]:
            if request < before:
                self.path(request).unlink()


def write_records(records: Iterable[RequestRecord], path: Path) -> None:
    """A file of records, whole or not at all."""
    write_text("".join(json.dumps(asdict(record), ensure_ascii=False) + "\n" for record in records), path)


def read_records(path: Path) -> Iterator[RequestRecord]:
    """The records of a file, but for a last line that was cut off while it was written; none if there is no file.

    Raises:
        UserError: If a line is damaged.
    """
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    for number, line in enumerate(lines, start=1):
        yield parsed(RECORD, line, f"{path}:{number}", FIX)


@dataclass(frozen=True)
class Recorded:
    """A request, its response, and the target's hidden states behind the response's tokens."""

    request: int
    source: str
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    hidden_AH: Tensor


@dataclass(frozen=True)
class RecordedStream(Sequence[Recorded]):
    """Requests in the order of the stream; hidden states are read when a request is.

    Attributes:
        traces: The run's responses, in the order of the cache.
        cache: The target's hidden states at each of their tokens.
        order: The source and the place among the traces of each request.
        max_seq_len: Tokens of prompt and response at most.
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


def recorded_stream(run: Run) -> RecordedStream:
    """The stream's requests with the responses and hidden states of the run's own stages.

    Held-out prompts are not learned from, and a prompt that comes twice or is too long has no response of its own: such
    requests are left out, and counted.

    Raises:
        UserError: If none of the requests has a response, or responses and hidden states do not belong together.
    """
    from composer.utils import dist  # imported here: the process that serves requests need not import Composer

    online, folder, longest = run.recipe.distill.online, run.data.path, run.recipe.data.max_seq_len
    assert online is not None, "a recipe in online mode has it"
    traces = [trace for trace in read_traces(folder, "train") if len(trace.prompt_ids) < longest]
    cache = TeacherCache(run.teacher_cache.path, "train")
    cache.require_examples(AnswerDataset(traces, max_seq_len=longest).examples)
    index_of = {trace.source: index for index, trace in enumerate(traces)}
    requests = list(open_stream(online.stream, seed=run.recipe.seed))
    order = [(each.source, index_of[each.prompt.source]) for each in requests if each.prompt.source in index_of]
    if not order:
        raise UserError(
            f"{folder}: has responses to none of the {len(requests)} requests of distill.online.stream. Name the "
            "sources of data.prompts there, or set distill.online.answers to live."
        )
    if (left_out := len(requests) - len(order)) and dist.get_global_rank() == 0:
        print(
            f"{folder}: {left_out} of {len(requests)} requests have no response to learn from (held out, repeated or "
            "too long), and are left out.",
            file=sys.stderr,
        )
    return RecordedStream(traces, cache, order, longest)


@dataclass(frozen=True)
class DraftReplay:
    """Replays a draft along responses, without dropout and without gradients.

    Attributes:
        draft: With its current weights.
        head: Of the target.
        vocab_size: Ids that both have.
        sampling: Of the responses.
        lookahead: Tokens drafted a verification step.
        seed: Of the draws which tokens of sampled responses are accepted.
    """

    draft: PreTrainedModel
    head: Head
    vocab_size: int
    sampling: Sampling
    lookahead: int
    seed: int

    @torch.no_grad()
    def accepts(self, prompt_ids: Sequence[int], answer_ids: Sequence[int], hidden_AH: Tensor) -> Accepts:
        """Acceptance probability of every token of a response, by the acceptance method that decoding uses.

        At temperature 0 a drafted token is accepted where it is the response's. The target's logits are not computed
        there: they would cost more than the draft, and agree except for near ties.
        """
        was_training = self.draft.training
        self.draft.eval()
        draft_AV = answer_logits(self.draft, prompt_ids, answer_ids).clone()[:, : self.vocab_size]
        self.draft.train(was_training)
        if self.sampling.is_greedy:
            equal_A = draft_AV.argmax(dim=-1).cpu().numpy() == np.array(answer_ids)
            return Accepts(equal_A.astype(np.float64), equal_A.astype(np.float64))
        target_AV = self.head.logits(hidden_AH.to(self.head.weight_VH)).float()[:, : self.vocab_size]
        replay = replay_answer(
            target_AV, draft_AV.to(target_AV.device), answer_ids, sampling=self.sampling, prompt_ids=prompt_ids
        )
        return replay.rules[rule_name(self.sampling.temperature)]

    def alpha(self, prompt_ids: Sequence[int], answer_ids: Sequence[int], hidden_AH: Tensor) -> float:
        """Mean acceptance rate over a response."""
        return float(self.accepts(prompt_ids, answer_ids, hidden_AH).alpha.mean())

    def serve(self, recorded: Recorded, *, updates: int) -> Served:
        """How the draft, after so many updates, would have served a recorded request."""
        accepts = self.accepts(recorded.prompt_ids, recorded.answer_ids, recorded.hidden_AH)
        drawn_A = np.random.default_rng([self.seed, recorded.request, 2]).random(len(accepts.accept))
        steps = steps_along(list(drawn_A < accepts.accept), lookahead=self.lookahead)
        record = RequestRecord(
            request=recorded.request,
            source=recorded.source,
            updates=updates,
            alpha=float(accepts.alpha.mean()),
            tokens=len(recorded.answer_ids),
            rounds=len(steps),
            proposed=sum(proposed for _, proposed, _ in steps),
            accepted=sum(accepted for _, _, accepted in steps),
            seconds=None,
            answer_ids=recorded.answer_ids,
        )
        mistakes = tuple(start + accepted for start, proposed, accepted in steps if accepted < proposed)
        return Served(record, recorded.prompt_ids, mistakes, recorded.hidden_AH)


def steps_along(accepted_A: Sequence[bool], *, lookahead: int) -> list[tuple[int, int, int]]:
    """The verification steps of a response: first token, drafted tokens, and accepted ones of each.

    Args:
        accepted_A: Whether a drafted token would be accepted at each place.
        lookahead: Tokens drafted a step; the last token of a response is the target's own.
    """
    steps, start = [], 0
    while start < len(accepted_A):
        proposed = min(lookahead, len(accepted_A) - start - 1)
        accepted = next((k for k in range(proposed) if not accepted_A[start + k]), proposed)
        steps.append((start, proposed, accepted))
        start += accepted + 1
    return steps


@dataclass
class RecordedRequests:
    """Recorded responses in the order of a stream, replayed with the draft that learns.

    Attributes:
        recorded: In the order of the stream.
        replay: Of the draft.
        journal: Of this process.
        served: Requests that are in the journal.
        updates: That the draft has had.
    """

    recorded: Sequence[Recorded]
    replay: DraftReplay
    journal: Journal
    served: int = field(init=False)
    updates: int = 0

    def __post_init__(self) -> None:
        self.served = self.journal.begin()

    def take(self, update: int) -> list[Served]:
        """The requests that this process served for an update: fewer than an interval at the end of the stream."""
        wanted = [request for request in self.journal.of_update(update) if request < len(self.recorded)]
        for index in range(self.served, update * self.journal.own + len(wanted)):
            self.journal.write(self.replay.serve(self.recorded[self.journal.request(index)], updates=self.updates))
            self.served += 1
        return self.journal.read(wanted)

    def publish(self, model: nn.Module, *, updates: int) -> None:  # noqa: ARG002  # the replay has the model itself
        """From now on requests are served by the draft after so many updates."""
        self.updates = updates

    def close(self) -> None:
        """Nothing to stop."""
