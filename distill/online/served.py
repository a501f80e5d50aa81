"""Served requests on disk, and replay of drafts on requests with recorded responses.

A process keeps its requests in <run>/online/rank0: requests/00000012.safetensors, and a line in records.jsonl. The
line is written before the file, and the file atomically: a request counts as served once its file exists, and lines
after the last such file are of requests in flight when the process was killed.

A lossless draft changes no token of a response, so drafts can be compared on recorded responses. For greedy responses
the replay equals decoding. For sampled ones it draws whether each token would have been accepted.

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
    """Acceptance on one request: a line of records.jsonl.

    Attributes:
        request: Index in the stream, from 0.
        source: Task, file or data set.
        updates: Updates of the draft that served it.
        alpha: Mean acceptance rate of this draft over all tokens of the response.
        rounds: Verification steps.
        proposed: Drafted tokens.
        seconds: From the request to its last token; null for replayed responses.
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
    """A response of the target with the data for training on it.

    Attributes:
        mistakes: Indices in the response at which a drafted token was rejected. Bonus tokens of fully accepted
            verification steps are not included: nothing was drafted there.
        hidden_AH: Input of the target's head that produced each token of the response.
    """

    record: RequestRecord
    prompt_ids: tuple[int, ...]
    mistakes: tuple[int, ...]
    hidden_AH: Tensor

    @property
    def answer_ids(self) -> tuple[int, ...]:
        return self.record.answer_ids

    def places(self, positions: Positions) -> Sequence[int]:
        return self.mistakes if positions == "rejected" else range(len(self.answer_ids))

    def example(self, positions: Positions) -> Example:
        """Return a training example: token i of the response is predicted at the position of the token before it."""
        *input_ids, last_id = (*self.prompt_ids, *self.answer_ids)
        before = len(self.prompt_ids) - 1
        spans = tuple((before + place, before + place + 1) for place in self.places(positions))
        return Example(tuple(input_ids), last_id, spans, begins=len(self.prompt_ids))

    def states(self, positions: Positions) -> Tensor:
        return self.hidden_AH[list(self.places(positions))]


def read_served(path: Path) -> Served:
    """Read one served request; raise UserError if the file is missing or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            record = RECORD.validate_json((file.metadata() or {})["record"])
            prompt_ids, mistakes = (tuple(file.get_tensor(name).tolist()) for name in ("prompt_ids", "mistakes"))
            return Served(record, prompt_ids, mistakes, file.get_tensor("hidden"))
    except (SafetensorError, OSError, KeyError, ValidationError) as error:
        raise UserError(f"{path}: damaged ({error}). {FIX}") from error


@dataclass(frozen=True)
class Journal:
    """The served requests of one process: those whose index is its rank modulo the number of processes.

    Attributes:
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
        """Return the stream index of one of this process's requests, counted from 0."""
        return self.rank + self.world * index

    def of_update(self, update: int) -> list[int]:
        """Return the stream indices that an update trains on; updates count from 0."""
        return [self.request(index) for index in range(update * self.own, (update + 1) * self.own)]

    @property
    def records_file(self) -> Path:
        return self.folder / "records.jsonl"

    def path(self, request: int) -> Path:
        return self.folder / "requests" / f"{request:08d}.safetensors"

    def stored(self) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.glob("requests/*.safetensors"))

    def num_served(self) -> int:
        """Return the number of complete requests: those up to the newest file."""
        stored = self.stored()
        return (stored[-1] - self.rank) // self.world + 1 if stored else 0

    def begin(self) -> int:
        """Create the journal, or drop the lines of requests in flight; return the number of served requests."""
        served = self.num_served()
        write_records(list(read_records(self.records_file))[:served], self.records_file)
        return served

    def write(self, served: Served) -> None:
        record = json.dumps(asdict(served.record), ensure_ascii=False)
        with self.records_file.open("a", encoding="utf-8") as file:
            file.write(record + "\n")
        ids = {name: torch.tensor(getattr(served, name), dtype=torch.int64) for name in ("prompt_ids", "mistakes")}
        tensors = {**ids, "hidden": served.hidden_AH.contiguous()}
        write_bytes(save(tensors, metadata={"record": record}), self.path(served.record.request))

    def read(self, requests: Iterable[int]) -> list[Served]:
        return [read_served(self.path(request)) for request in requests]

    def forget(self, before: int) -> None:
        """Delete the files of requests before an index, except the newest file, which marks how far serving came."""
        for request in self.stored()[:-1]:
            if request < before:
                self.path(request).unlink()


def write_records(records: Iterable[RequestRecord], path: Path) -> None:
    write_text("".join(json.dumps(asdict(record), ensure_ascii=False) + "\n" for record in records), path)


def read_records(path: Path) -> Iterator[RequestRecord]:
    """Yield the records of a file, without a truncated last line; raise UserError if a line is damaged."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    for number, line in enumerate(lines, start=1):
        yield parsed(RECORD, line, f"{path}:{number}", FIX)


@dataclass(frozen=True)
class Recorded:
    """A request, its response, and the target's hidden states at the response tokens."""

    request: int
    source: str
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    hidden_AH: Tensor


@dataclass(frozen=True)
class RecordedStream(Sequence[Recorded]):
    """Requests in stream order; hidden states are read on access.

    Attributes:
        traces: The run's responses, in the order of the cache.
        order: Source and trace index of each request.
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
    """Load the stream's requests with the responses and hidden states of the run.

    Held-out, repeated and too long prompts have no response to train on: such requests are left out, and counted.

    Raises:
        UserError: If none of the requests has a response, or responses and hidden states do not match.
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
    """Replays a draft along responses, without dropout or gradients.

    Attributes:
        vocab_size: Number of shared ids.
        sampling: Of the responses.
        lookahead: Tokens drafted per verification step.
        seed: Of the acceptance draws for sampled responses.
    """

    draft: PreTrainedModel
    head: Head
    vocab_size: int
    sampling: Sampling
    lookahead: int
    seed: int

    @torch.no_grad()
    def accepts(self, prompt_ids: Sequence[int], answer_ids: Sequence[int], hidden_AH: Tensor) -> Accepts:
        """Return the acceptance probability of every token of a response, under the acceptance method of decoding.

        At temperature 0 a drafted token is accepted if it equals the response's. The target's logits are not computed
        then: they would cost more than the draft, and agree except at near ties.
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
        return float(self.accepts(prompt_ids, answer_ids, hidden_AH).alpha.mean())

    def serve(self, recorded: Recorded, *, updates: int) -> Served:
        """Return a recorded request as the draft would have served it."""
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
    """Return the verification steps of a response: first token, number of drafted tokens, and of accepted ones.

    Args:
        accepted_A: True if a drafted token would be accepted at that index.
        lookahead: Tokens drafted per step; the last token of a response is the target's own.
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
    """Recorded responses in stream order, replayed with the draft in training."""

    recorded: Sequence[Recorded]
    replay: DraftReplay
    journal: Journal
    served: int = field(init=False)
    updates: int = 0

    def __post_init__(self) -> None:
        self.served = self.journal.begin()

    def take(self, update: int) -> list[Served]:
        """Return this process's served requests for an update; fewer than an interval at the end of the stream."""
        wanted = [request for request in self.journal.of_update(update) if request < len(self.recorded)]
        for index in range(self.served, update * self.journal.own + len(wanted)):
            self.journal.write(self.replay.serve(self.recorded[self.journal.request(index)], updates=self.updates))
            self.served += 1
        return self.journal.read(wanted)

    def publish(self, model: nn.Module, *, updates: int) -> None:  # noqa: ARG002  # the replay holds the model itself
        self.updates = updates

    def close(self) -> None:
        """Do nothing: there is no process to stop."""
