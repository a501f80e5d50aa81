"""Serve requests by speculative decoding in a process next to training: `python -m distill.online.serving`.

The training process writes new drafts to its standard input, a line each: "draft UPDATES FILE". It prints "served" for
each request that is complete in the journal, and "ended" after the last one of the stream. It exits with training.

A process keeps its requests in <run>/online/rank0: requests/00000012.safetensors, and a line in records.jsonl. The
line is written before the file, and the file atomically: a request counts as served once its file exists, and lines
after the last such file are of requests in flight when the process was killed.

A lossless draft changes no token of a response, so drafts can be compared on recorded responses. For greedy responses
the replay equals decoding. For sampled ones it draws whether each token would have been accepted.

Shape suffixes used in this file:
    A = tokens of the response
    H = width of the target's last hidden state
    V = vocabulary entries
"""

import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn
from transformers import PreTrainedModel

from architectures.errors import UserError
from architectures.files import parsed, write_bytes, write_text
from distill.chunked_loss import Head, head_of
from distill.data.batches import Example, ResponseDataset
from distill.process import Process, exit_terminated, report_user_errors, take_interrupts
from distill.recipe.recipe import Recipe, load_recipe
from distill.recipe.sections import OnlineConfig
from distill.run import Run
from distill.teacher_cache import TeacherCache
from eval.chat import render_prompt
from eval.decoding.sampling import Limits, Sampling, Seeds, Speculation, row_seed
from eval.decoding.speculative import DecodingRequest, Emitted, decode_steps
from eval.models import load_model, load_tokenizer, shared_vocab_size, stop_token_ids
from eval.replay import Accepts, replay_response, response_logits, rule_name
from eval.responses import Trace, read_traces
from eval.stream import open_stream

SERVER_VARIABLE = "WIDEDRAFT_SERVER"  # in the environment of `widedraft serve RECIPE`: its flags, as JSON
FIX = "Delete the run's directory `online`, and resume training from its last checkpoint."


@dataclass(frozen=True, kw_only=True)
class RequestRecord:
    """Acceptance on one request: a line of records.jsonl.

    Attributes:
        request: Index in the stream, from 0.
        source: Task, file or data set.
        updates: Updates of the draft that served it.
        alpha: Mean acceptance rate of this draft over all tokens of the response.
        steps: Verification steps.
        proposed: Drafted tokens.
        seconds: From the request to its last token; null for replayed responses.
    """

    request: int
    source: str
    updates: int
    alpha: float
    tokens: int
    steps: int
    proposed: int
    accepted: int
    seconds: float | None
    response_ids: tuple[int, ...]
    sampling: Sampling


RECORD = TypeAdapter(RequestRecord)


@dataclass(frozen=True)
class Recorded:
    """A request, and the target's response with the data for training on it.

    Attributes:
        hidden_AH: Input of the target's head that produced each token of the response.
    """

    request: int
    source: str
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    sampling: Sampling
    hidden_AH: Tensor


@dataclass(frozen=True)
class Served:
    """A served request: its record, and what Recorded has in addition."""

    record: RequestRecord
    prompt_ids: tuple[int, ...]
    hidden_AH: Tensor

    @classmethod
    def of(
        cls, recorded: Recorded, alpha: float, steps: Sequence[tuple[int, int]], *, updates: int, seconds: float | None
    ) -> "Served":
        """Return a request with its record; `steps` has the numbers of drafted and accepted tokens of each step."""
        record = RequestRecord(
            request=recorded.request,
            source=recorded.source,
            updates=updates,
            alpha=alpha,
            tokens=len(recorded.response_ids),
            steps=len(steps),
            proposed=sum(proposed for proposed, _ in steps),
            accepted=sum(accepted for _, accepted in steps),
            seconds=seconds,
            response_ids=recorded.response_ids,
            sampling=recorded.sampling,
        )
        return cls(record, recorded.prompt_ids, recorded.hidden_AH)

    @property
    def recorded(self) -> Recorded:
        own = self.record
        return Recorded(own.request, own.source, self.prompt_ids, own.response_ids, own.sampling, self.hidden_AH)

    @property
    def example(self) -> Example:
        """The training example: token i of the response is predicted at the position of the token before it."""
        *input_ids, last_id = (*self.prompt_ids, *self.record.response_ids)
        before = len(self.prompt_ids) - 1
        spans = ((before, before + self.record.tokens),)
        return Example(tuple(input_ids), last_id, spans, begins=len(self.prompt_ids))


def read_served(path: Path) -> Served:
    """Read one served request; raise UserError if the file is missing or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            record = RECORD.validate_json((file.metadata() or {})["record"])
            return Served(record, tuple(file.get_tensor("prompt_ids").tolist()), file.get_tensor("hidden"))
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
        ids = torch.tensor(served.prompt_ids, dtype=torch.int64)
        tensors = {"prompt_ids": ids, "hidden": served.hidden_AH.contiguous()}
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
    sampling: Sampling

    def __getitem__(self, request: int) -> Recorded:  # pyright: ignore[reportIncompatibleMethodOverride]  # no slices
        source, index = self.order[request]
        trace = self.traces[index]
        response_ids = trace.response_ids[: self.max_seq_len - len(trace.prompt_ids)]
        hidden_AH = self.cache.rows(index)["hidden"]
        return Recorded(request, source, trace.prompt_ids, response_ids, self.sampling, hidden_AH)

    def __len__(self) -> int:
        return len(self.order)


def online_of(run: Run) -> OnlineConfig:
    online = run.recipe.distill.online
    assert online is not None, "a recipe in online mode has it"
    return online


def sampling_of(run: Run) -> Sampling:
    return Sampling(run.recipe.data.temperatures[0], top_p=run.recipe.data.top_p)


def recorded_stream(run: Run) -> RecordedStream:
    """Load the stream's requests with the responses and hidden states of the run.

    Held-out, repeated and too long prompts have no response to train on: such requests are left out, and counted.

    Raises:
        UserError: If none of the requests has a response, or responses and hidden states do not match.
    """
    from composer.utils import dist  # imported here: the process that serves requests need not import Composer

    stream, folder, longest = online_of(run).stream, run.data.path, run.recipe.data.max_seq_len
    assert stream is not None, "guaranteed by the validation of recipes"
    traces = [trace for trace in read_traces(folder, "train") if len(trace.prompt_ids) < longest]
    cache = TeacherCache(run.teacher_cache.path, "train")
    cache.require_examples(ResponseDataset(traces, max_seq_len=longest).examples)
    index_of = {trace.source: index for index, trace in enumerate(traces)}
    requests = list(open_stream(stream, seed=run.recipe.seed))
    order = [(each.source, index_of[each.prompt.source]) for each in requests if each.prompt.source in index_of]
    if not order:
        raise UserError(
            f"{folder}: has no responses to any of the {len(requests)} requests of distill.online.stream. Use the "
            "sources of data.prompts in the stream, or set distill.online.responses to live."
        )
    if (left_out := len(requests) - len(order)) and dist.get_global_rank() == 0:
        print(
            f"{folder}: {left_out} of {len(requests)} requests have no response to train on (held out, repeated or "
            "too long) and are dropped.",
            file=sys.stderr,
        )
    return RecordedStream(traces, cache, order, longest, sampling_of(run))


@dataclass(frozen=True)
class DraftReplay:
    """Replays a draft along responses, without dropout or gradients.

    Attributes:
        vocab_size: Number of shared ids.
        num_speculative_tokens: Tokens drafted per verification step.
        seed: Of the acceptance draws for sampled responses.
    """

    draft: PreTrainedModel
    head: Head
    vocab_size: int
    num_speculative_tokens: int
    seed: int

    @torch.no_grad()
    def accepts(self, recorded: Recorded) -> Accepts:
        """Return the acceptance probability of every token of a response, under the acceptance method of decoding.

        At temperature 0 a drafted token is accepted if it equals the response's. The target's logits are not computed
        then: they would cost more than the draft, and agree except at near ties.
        """
        was_training, response_ids = self.draft.training, recorded.response_ids
        self.draft.eval()
        draft_AV = response_logits(self.draft, recorded.prompt_ids, response_ids).clone()[:, : self.vocab_size]
        self.draft.train(was_training)
        if recorded.sampling.is_greedy:
            equal_A = draft_AV.argmax(dim=-1).cpu().numpy() == np.array(response_ids)
            return Accepts(equal_A.astype(np.float64), equal_A.astype(np.float64))
        target_AV = self.head.logits(recorded.hidden_AH.to(self.head.weight_VH)).float()[:, : self.vocab_size]
        how = {"sampling": recorded.sampling, "prompt_ids": recorded.prompt_ids}
        replay = replay_response(target_AV, draft_AV.to(target_AV.device), response_ids, **how)
        return replay.rules[rule_name(recorded.sampling.temperature)]

    def alpha(self, recorded: Recorded) -> float:
        return float(self.accepts(recorded).alpha.mean())

    def serve(self, recorded: Recorded, *, updates: int) -> Served:
        """Return a recorded request as the draft would have served it."""
        accepts = self.accepts(recorded)
        drawn_A = np.random.default_rng([self.seed, recorded.request, 2]).random(len(accepts.accept))
        steps = steps_along(list(drawn_A < accepts.accept), num_speculative_tokens=self.num_speculative_tokens)
        return Served.of(recorded, float(accepts.alpha.mean()), steps, updates=updates, seconds=None)


def steps_along(accepted_A: Sequence[bool], *, num_speculative_tokens: int) -> list[tuple[int, int]]:
    """Return the verification steps of a response, each as numbers of drafted and of accepted tokens.

    Args:
        accepted_A: True if a drafted token would be accepted at that index.
        num_speculative_tokens: Tokens drafted per step; the last token of a response is the target's own.
    """
    steps, start = [], 0
    while start < len(accepted_A):
        proposed = min(num_speculative_tokens, len(accepted_A) - start - 1)
        accepted = next((k for k in range(proposed) if not accepted_A[start + k]), proposed)
        steps.append((proposed, accepted))
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


POLL_S = 1.0  # between two looks for SIGTERM while no request is served
DRAFTS_TO_KEEP = 4  # the newest, and those that the other process may be reading
PublishedDraft = tuple[int, Path]  # updates of a draft, and the file of its weights


def trained_weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}


@torch.no_grad()
def restore_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    own = dict(model.named_parameters())
    for name, weight in weights.items():
        own[name].copy_(weight)


@dataclass(frozen=True)
class OnlineRequest:
    """A request as token ids: index in the stream, source, prompt, and maximum response length."""

    number: int
    source: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int


def head_input(model: PreTrainedModel) -> deque[Tensor]:
    """Return a queue that holds the input of a model's output head in its latest forward pass."""
    latest, head = deque[Tensor](maxlen=1), model.get_output_embeddings()
    assert head is not None
    head.register_forward_pre_hook(lambda _, inputs: latest.append(inputs[0]))
    return latest


@dataclass
class OnlineServer:
    """Serves one request after another with a draft whose weights may change in between.

    Attributes:
        num_speculative_tokens: Tokens drafted per verification step.
        seed: Combined with a request's index in the stream.
    """

    target: PreTrainedModel
    draft: PreTrainedModel
    num_speculative_tokens: int
    sampling: Sampling
    stop_ids: frozenset[int]
    seed: int

    def __post_init__(self) -> None:
        self.head_input, vocab_size = head_input(self.target), shared_vocab_size(self.target, self.draft)
        self.replay = DraftReplay(self.draft, head_of(self.target), vocab_size, self.num_speculative_tokens, self.seed)

    def serve(self, request: OnlineRequest, *, updates: int) -> Served:
        """Generate the response to a request, and record the draft's acceptance."""
        begin_s = time.monotonic()
        limits = Limits(request.max_new_tokens, self.stop_ids)
        wanted = DecodingRequest([request.prompt_ids], limits, self.sampling, Speculation(self.num_speculative_tokens))
        seeds, row_seeds = Seeds.of(self.seed), [row_seed(request.number)]
        token_ids: list[int] = []
        states: list[Tensor] = []
        steps = []
        for step in decode_steps([self.target, self.draft], wanted, seeds=seeds, row_seeds=row_seeds):
            if isinstance(step, Emitted):
                token_ids += step.token_ids
                states.append(self.head_input[0][0, : len(step.token_ids)].to("cpu", copy=True))
            else:
                steps = step[1].steps
        seconds = time.monotonic() - begin_s
        recorded = Recorded(
            request.number, request.source, request.prompt_ids, tuple(token_ids), self.sampling, torch.cat(states)
        )
        counts = [(each.proposed, each.accepted) for each in steps]
        return Served.of(recorded, self.replay.alpha(recorded), counts, updates=updates, seconds=seconds)


def load_models(run: Run, *, rank: int) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Load the target and the initial draft for decoding, on the device of a process."""
    target = run.recipe.target
    device = f"cuda:{rank % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu"
    load = partial(load_model, dtype=target.dtype, device=device)
    return load(run.target, bits=target.bits), load(run.init.path)


def requests_of(run: Run, *, first: int, world: int) -> Iterator[OnlineRequest]:
    """Yield this process's requests from `first` on.

    Raises:
        UserError: As `open_stream`; also if a prompt leaves no token for a response within data.max_seq_len.
    """
    recipe, tokenizer, stream = run.recipe, load_tokenizer(run.target), online_of(run).stream
    assert stream is not None, "requests over HTTP are served by distill.online.http_serving"
    for request in open_stream(stream, seed=recipe.seed, start=first):
        if (request.number - first) % world:
            continue
        kwargs = recipe.data.chat_template_kwargs[request.number % len(recipe.data.chat_template_kwargs)]
        prompt_ids = render_prompt(tokenizer, replace(request.prompt, chat_template_kwargs=kwargs))
        max_new_tokens = min(recipe.data.max_seq_len - len(prompt_ids), recipe.data.max_new_tokens)
        if max_new_tokens < 1:
            raise UserError(
                f"{request.prompt.source}: has {len(prompt_ids)} tokens, but data.max_seq_len is "
                f"{recipe.data.max_seq_len}. Raise it, or remove this row."
            )
        yield OnlineRequest(request.number, request.source, tuple(prompt_ids), max_new_tokens)


class DraftInbox:
    """The newest draft that training has published, loaded between two requests or verification steps.

    Args:
        model: The draft, whose weights are replaced.
        own: Requests of this process between two updates if a request waits for the update before it, else None.
        end: Called when training has ended; by default this process exits after the current request.
    """

    def __init__(
        self, model: nn.Module, draft: PublishedDraft, own: int | None = None, end: Callable[[], object] | None = None
    ) -> None:
        self.model, self.own, self.end = model, own, end or self.exit
        self.news: queue.Queue[PublishedDraft | None] = queue.Queue()
        self.serving = threading.Lock()  # held while a request is served
        self.load(draft)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self) -> None:
        """Queue new drafts until standard input ends."""
        for line in sys.stdin:
            _, updates, path = line.rstrip("\n").split(" ", 2)
            self.news.put((int(updates), Path(path)))
        self.end()

    def exit(self) -> None:
        """Exit from this thread: the other may wait for a request forever."""
        self.news.put(None)
        with self.serving:  # the current request is written first
            os._exit(0)

    def newest_for(self, served: int) -> int:
        """Load the newest draft, after waiting for the updates due before the next request; return its updates.

        Raises:
            SystemExit: If training has ended.
        """
        needed = served // self.own if self.own else 0
        newest: PublishedDraft | None = None
        while not self.news.empty() or (newest[0] if newest else self.updates) < needed:
            newest = self.news.get()
            if newest is None:
                raise SystemExit(0)
        if newest is not None:
            self.load(newest)
        return self.updates

    def load(self, draft: PublishedDraft) -> None:
        self.updates, path = draft
        restore_weights(self.model, load_file(path))


@dataclass
class LiveRequests:
    """Client of the serving process, in the training process.

    Attributes:
        module: That serves.
        process: None until there is a draft to serve with.
        ended: True after the end of the stream.
    """

    recipe: Path
    journal: Journal
    module: str = "distill.online.serving"
    process: subprocess.Popen[bytes] | None = None
    served: int = field(init=False)
    ended: bool = False

    def __post_init__(self) -> None:
        self.served = self.journal.begin()

    def take(self, update: int) -> list[Served]:
        """Return this process's served requests for an update; fewer than an interval at the end of the stream.

        Raises:
            UserError: If the serving process failed; it has printed the error.
            SystemExit: After SIGTERM, if no update is due.
        """
        own = self.journal.own
        while self.served < (update + 1) * own and not self.ended:
            assert self.process is not None, "a draft is published before requests are taken"
            assert self.process.stdout is not None
            while not (Process.is_terminated or select.select([self.process.stdout], [], [], POLL_S)[0]):
                continue
            if Process.is_terminated:
                exit_terminated(": served requests are kept")
            word = self.process.stdout.readline().strip()
            self.served += word == b"served"
            self.ended = word == b"ended"
            if not word:
                raise UserError(
                    f"{self.recipe}: the serving process exited ({self.process.wait()}); its output is "
                    "above. Run the same command again: served requests are kept."
                )
        return self.journal.read(self.journal.of_update(update)[: max(0, self.served - update * own)])

    def publish(self, model: nn.Module, *, updates: int) -> None:
        path = self.journal.folder / f"draft-{updates:08d}.safetensors"
        write_bytes(save({name: weight.cpu().contiguous() for name, weight in trained_weights(model).items()}), path)
        if self.process is None:
            words = (self.recipe, self.journal.folder, path, updates, self.journal.rank, self.journal.world)
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.module, *map(str, words)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,  # select sees every line
            )
        elif not self.ended:
            assert self.process.stdin is not None
            try:
                self.process.stdin.write(f"draft {updates} {path}\n".encode())
            except BrokenPipeError:  # it has exited, which `take` reports
                return
        for old in sorted(self.journal.folder.glob("draft-*.safetensors"))[:-DRAFTS_TO_KEEP]:
            old.unlink()

    def close(self) -> None:
        """Close its standard input, which makes it exit, and wait."""
        if self.process is not None:
            self.process.communicate()


def serve(recipe: Recipe, folder: Path, draft: PublishedDraft, *, rank: int, world: int) -> None:
    run = Run.of(recipe)
    online = online_of(run)
    journal = Journal(folder, rank, world, online.update_interval)
    target, proposer = load_models(run, rank=rank)
    how = (online.num_speculative_tokens, sampling_of(run), stop_token_ids(target), recipe.seed)
    server, served = OnlineServer(target, proposer, *how), journal.num_served()
    inbox = DraftInbox(server.draft, draft, own=journal.own if online.waits else None)
    for request in requests_of(run, first=journal.request(served), world=world):
        with inbox.serving:
            updates = inbox.newest_for(served)
            journal.write(server.serve(request, updates=updates))
        served += 1
        print("served", flush=True)
    print("ended", flush=True)


def main(words: list[str], serve: Callable[..., None] = serve) -> int:
    recipe, folder, draft, updates, rank, world = words
    newest = (int(updates), Path(draft))
    return report_user_errors(
        lambda: serve(load_recipe(recipe), Path(folder), newest, rank=int(rank), world=int(world))
    )


if __name__ == "__main__":
    take_interrupts()
    sys.exit(main(sys.argv[1:]))
