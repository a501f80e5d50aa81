"""Continuous batching of requests over one target and one draft, in a thread that owns both models.

Requests of equal sampling form one running batch; the batches take turns, one verification step each. Between steps
a chunk of new prompts is prefilled, prefilled requests join, finished and cancelled ones leave, and the draft may be
replaced. A sequence depends on its own prompt, seed and sampling only, not on the others (up to rounding).

Steps run eagerly: this is for trying drafts, not for production.

Shape suffixes used in this file:
    N = emitted tokens of a row
    B = rows, T = tokens fed, V = vocabulary
"""

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from prometheus_client import CollectorRegistry, Counter, Gauge
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from architectures.compatibility import DEFAULT_NUM_SPECULATIVE_TOKENS
from architectures.errors import UserError
from architectures.hub import resolve_checkpoint
from architectures.manifest import read_json_file
from eval.config import ServeSettings
from eval.decoding.kv_cache import RowSequencer, Span, reject_changing_rope, takes_rows
from eval.decoding.sampling import Limits, Sampling, Seeds, Speculation, Text
from eval.decoding.speculative import Batch, DecodingRequest, Emitted, SpeculativeSteps, Streams
from eval.machine import torch_threads
from eval.models import context_length_of, load_model, require_same_tokenizer, shared_vocab_size
from eval.pair import LoadedPair
from eval.side_by_side import UNFINISHED

DEFAULT_MODEL_LEN = 4096
MAX_PREFILL_TOKENS = 512  # fed between two steps, padding included
Group = tuple[Sampling, bool]  # requests of one sampling, with or without the draft, are decoded in one batch
SEEDS = Seeds()  # the seed of a request is its row seed


class QueueFullError(Exception):
    """Raised if as many requests wait as may."""


@dataclass(frozen=True)
class Token:
    """An emitted token.

    Attributes:
        text: Text that may be shown from this token on; a character of several tokens belongs to its last.
        offset: Characters of the response before it.
        source: "draft" if the draft proposed it, else "target".
        logp: Of the target, at temperature 1; None if not requested.
        num_draft_tokens: Tokens that the draft proposed in the step that ends with this token; 0 within a step.
        finish_reason: "stop" or "length" for the last token of a response.
    """

    token_id: int
    text: str
    offset: int
    source: str
    logp: float | None
    num_draft_tokens: int = 0
    finish_reason: str | None = None


class ResponseText:
    """Text of a growing response: whole characters only, and nothing that may be the beginning of a stop string."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str]) -> None:
        self.tokenizer, self.stop = tokenizer, stop
        self.ids: list[int] = []
        self.start = self.end = 0  # of the latest ids whose text is known; they give the next ones their context
        self.held, self.length, self.is_stopped = "", 0, False

    def add(self, token_id: int, *, is_last: bool) -> str:
        """Return the text that may be shown after another token; all that is left if it is the last."""
        self.ids.append(token_id)
        known, text = self.decode(self.ids[self.start : self.end]), self.decode(self.ids[self.start :])
        if len(text) > len(known) and (is_last or not text.endswith(UNFINISHED)):
            self.start, self.end = self.end, len(self.ids)
            self.held += text[len(known) :]
        found = [place for stop in self.stop if (place := self.held.find(stop)) >= 0]
        self.is_stopped = bool(found)
        count = min(found) if found else len(self.held) - (0 if is_last else self.begun_stop())
        shown, self.held = self.held[:count], self.held[count:]
        self.length += len(shown)
        return shown

    def begun_stop(self) -> int:
        """Return the length of the longest end of the held text with which a stop string begins."""
        ends = (size for stop in self.stop for size in range(1, len(stop)) if self.held.endswith(stop[:size]))
        return max(ends, default=0)

    def decode(self, token_ids: Sequence[int]) -> str:
        how = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        return str(self.tokenizer.decode(list(token_ids), **how))


@dataclass(frozen=True, eq=False)
class ServedRequest:
    """A request.

    Attributes:
        seed: Of its random numbers, from -2**63 to 2**64 - 1.
        deliver: Called in the decoder thread with each token; with None if the request ends unfinished.
        speculative: False decodes without the draft.
        states: For subclasses of the engine: the target's hidden states so far.
    """

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    seed: int
    text: ResponseText
    deliver: Callable[[Token | None], object]
    speculative: bool = True
    wants_logp: bool = False
    begin_s: float = field(default_factory=time.monotonic)
    states: list[Tensor] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def group(self) -> Group:
        return self.sampling, self.speculative

    def receive(
        self, emitted: Emitted, logp: Sequence[float | None], num_draft_tokens: int, finish_reason: str | None
    ) -> str | None:
        """Deliver the tokens of a step, up to the one that completes a stop string; return the finish reason.

        Args:
            finish_reason: Apart from stop strings.
        """
        for number, (token_id, own) in enumerate(zip(emitted.token_ids, logp, strict=True), start=1):
            offset, is_last = self.text.length, number == len(emitted.token_ids)
            shown = self.text.add(token_id, is_last=is_last and finish_reason is not None)
            reason = "stop" if self.text.is_stopped else finish_reason if is_last else None
            source = "draft" if number <= emitted.accepted else "target"
            proposed = num_draft_tokens if is_last or reason is not None else 0
            self.deliver(Token(token_id, shown, offset, source, own, proposed, reason))
            if reason is not None:
                return reason
        return None


class ServedRows(RowSequencer):
    """An opener, and rows that keep the logits of the last step, for log-probabilities."""

    def __init__(self, model: PreTrainedModel, prompts: Any, *, capacity: int, vocab_size: int, **_how: Any) -> None:
        assert prompts, "a batch has rows"
        super().__init__(model, capacity=capacity, vocab_size=vocab_size)

    def feed(self, ids_BT: Tensor, spans: Sequence[Span], *, whole: bool) -> Tensor:
        self.logits_BTV = super().feed(ids_BT, spans, whole=whole)
        return self.logits_BTV


COUNTERS = {  # and the label of each that has one
    "spec_decode_num_drafts": (),
    "spec_decode_num_draft_tokens": (),
    "spec_decode_num_accepted_tokens": (),
    "spec_decode_num_accepted_tokens_per_pos": ("position",),
    "generation_tokens": (),
    "prompt_tokens": (),
    "request_success": ("finished_reason",),
}


class ServingMetrics:
    """Counters with vLLM's names.

    Every verification step of a sequence counts as a draft, also one without proposed tokens at its end: accepted
    tokens plus drafts are the tokens emitted with a draft. Tokens behind a stop string count too.
    """

    def __init__(self, engine: "ServingEngine") -> None:
        self.registry = CollectorRegistry()
        self.counters = {
            name: Counter(f"widedraft:{name}", f"As vllm:{name}.", labels, registry=self.registry)
            for name, labels in COUNTERS.items()
        }
        for name, number in (("running", lambda: engine.num_running), ("waiting", lambda: len(engine.waiting))):
            gauge = Gauge(f"widedraft:num_requests_{name}", f"Requests {name}.", registry=self.registry)
            gauge.set_function(number)

    def add(self, name: str, count: float = 1, **labels: str) -> None:
        counter = self.counters[name]
        (counter.labels(**labels) if labels else counter).inc(count)

    def count(self, emitted: Emitted, num_draft_tokens: int, *, speculative: bool) -> None:
        """Count a step of a sequence."""
        self.add("generation_tokens", len(emitted.token_ids))
        if speculative:
            self.add("spec_decode_num_drafts")
            self.add("spec_decode_num_draft_tokens", num_draft_tokens)
            self.add("spec_decode_num_accepted_tokens", emitted.accepted)
            for position in range(emitted.accepted):
                self.add("spec_decode_num_accepted_tokens_per_pos", position=str(position))


class ServingEngine:
    """Decoder thread. A context manager: requests that have not finished when it is left are aborted.

    Raises:
        UserError: If a model does not decode ragged batches, or its context is shorter than max_model_len.
    """

    def __init__(self, pair: LoadedPair, settings: ServeSettings) -> None:
        contexts = [length.tokens for folder in pair.folders if (length := context_length_of(folder)) is not None]
        self.pair, self.settings = pair, settings
        self.max_model_len = settings.max_model_len or min([DEFAULT_MODEL_LEN, *contexts])
        self.vocab_size = shared_vocab_size(pair.target, pair.draft)
        for model, folder in zip((pair.target, pair.draft), pair.folders, strict=True):
            self.require_servable(model, folder)
        self.speculation = self.speculation_of(pair.folders[1])
        self.waiting: deque[ServedRequest] = deque()
        self.swaps: deque[tuple[PreTrainedModel, Path, Future[None]]] = deque()
        self.loading = threading.Lock()  # held while a draft is loaded and swapped in
        self.changed, self.is_closed = threading.Condition(), False  # guards what other threads change
        self.groups: dict[Group, tuple[Batch, list[ServedRequest]]] = {}  # requests in the order of rows
        self.prefilling: list[ServedRequest] = []
        self.admission: Iterator[None] = iter(())  # prefills them, a chunk at each `next`
        self.metrics = ServingMetrics(self)
        self.thread = threading.Thread(target=self.run, name="decoder", daemon=True)

    def require_servable(self, model: PreTrainedModel, folder: Path) -> None:
        """Raise UserError if a model does not decode ragged batches, or not up to max_model_len tokens."""
        if not takes_rows(model):
            raise UserError(
                f"{folder}: model_type {model.config.model_type} decodes one sequence at a time. serve needs models "
                "that decode ragged batches: use `widedraft verify --show`, or another model."
            )
        limit = context_length_of(folder)
        if limit is not None and limit.tokens < self.max_model_len:
            raise UserError(f"{folder}: {limit.origin}, but --max-model-len is {self.max_model_len}. Lower it.")
        reject_changing_rope(model, [[0]], self.max_model_len)

    def speculation_of(self, folder: Path) -> Speculation:
        own = read_json_file(folder / "generation_config.json").get("num_assistant_tokens")
        return Speculation(self.settings.num_speculative_tokens or own or DEFAULT_NUM_SPECULATIVE_TOKENS)

    @property
    def num_running(self) -> int:
        running = [requests for _, requests in list(self.groups.values())]
        return sum(map(len, [self.prefilling, *running]))

    # For other threads

    def __enter__(self) -> "ServingEngine":
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        with self.changed:
            self.is_closed = True
            self.changed.notify()
        self.thread.join()

    def submit(self, request: ServedRequest) -> None:
        """Queue a request; raises QueueFullError."""
        most = self.settings.max_queue + self.settings.max_num_seqs
        with self.changed:
            if self.is_closed or len(self.waiting) + self.num_running >= most:
                raise QueueFullError
            self.waiting.append(request)
            self.changed.notify()

    def swap_draft(self, draft: str) -> None:
        """Load a draft while decoding goes on, and use it from the next step on; returns when it is used.

        Raises:
            UserError: If this is no draft of the target. The present one stays after any error.
        """
        done: Future[None] = Future()
        with self.loading:
            loaded = self.load_draft(draft)
            with self.changed:
                if self.is_closed:
                    done.cancel()
                else:
                    self.swaps.append((*loaded, done))
                    self.changed.notify()
            done.result()

    def load_draft(self, draft: str) -> tuple[PreTrainedModel, Path]:
        """Load a draft and check it as at the start."""
        folder = resolve_checkpoint(draft)
        require_same_tokenizer(self.pair.folders[0], folder)
        model = load_model(folder, dtype=self.settings.dtype, encoder_decoder=True)
        self.require_servable(model, folder)
        if (shared := shared_vocab_size(self.pair.target, model)) < self.vocab_size:
            raise UserError(f"{folder}: shares {shared} ids with the target, not {self.vocab_size}. Restart with it.")
        return model, folder

    # In the decoder thread

    def run(self) -> None:
        with torch_threads(None):
            while self.wait_for_work():
                for batch, requests in self.groups.values():
                    self.attempt(partial(self.step, batch, requests), requests)
                self.groups = {group: running for group, running in self.groups.items() if running[1]}
                if not self.prefilling:  # all chunks of a prompt are read by one draft
                    while self.swaps:
                        self.swap(*self.swaps.popleft())
                    self.take()
                if self.prefilling:
                    self.attempt(self.advance_prefill, self.prefilling)
        for requests in (self.waiting, self.prefilling, *(requests for _, requests in self.groups.values())):
            self.abandon(requests, "abort")
        for *_, done in self.swaps:
            done.cancel()

    def wait_for_work(self) -> bool:
        """Return True if there is something to do, False when closed."""
        with self.changed:
            self.changed.wait_for(
                lambda: self.waiting or self.prefilling or self.groups or self.swaps or self.is_closed
            )
            return not self.is_closed

    def attempt(self, work: Callable[[], None], requests: list[ServedRequest]) -> None:
        """Run part of the loop; an internal error ends the requests that it concerns, and the loop goes on."""
        try:
            with torch.inference_mode():
                work()
        except Exception:
            traceback.print_exc()
            self.abandon(requests, "error")
            requests.clear()

    def abandon(self, requests: Iterable[ServedRequest], reason: str) -> None:
        for request in requests:
            self.metrics.add("request_success", finished_reason=reason)
            request.deliver(None)

    def take(self) -> None:
        """Choose waiting requests to prefill together, of the first one's group; drop cancelled ones."""
        taken: list[ServedRequest] = []
        with self.changed:
            gone = [request for request in self.waiting if request.cancelled.is_set()]
            left = [request for request in self.waiting if request not in gone]
            own = [request for request in left if request.group == left[0].group]
            for request in own[: self.settings.max_num_seqs - self.num_running]:
                longest = max(len(each.prompt_ids) for each in (*taken, request))
                if taken and longest * (len(taken) + 1) > MAX_PREFILL_TOKENS:
                    break
                taken.append(request)
            self.waiting = deque(request for request in left if request not in taken)
            self.prefilling, self.admission = taken, self.admit(taken)
        self.abandon(gone, "abort")

    def advance_prefill(self) -> None:
        """Prefill a chunk, unless all clients of the prompts are gone."""
        if all(request.cancelled.is_set() for request in self.prefilling):
            self.abandon(self.prefilling, "abort")
            self.prefilling = []
        else:
            next(self.admission, None)

    def admit(self, taken: list[ServedRequest]) -> Iterator[None]:
        """Prefill requests of one group in chunks, and let them join its running batch."""
        group = sampling, speculative = taken[0].group
        own_limits = [request.max_tokens for request in taken]
        request = DecodingRequest(
            [each.prompt_ids for each in taken],
            Limits(max(own_limits), self.pair.stop_ids),
            sampling,
            self.speculation if speculative else None,
            target_vocab=self.vocab_size,
            max_new_tokens=own_limits,
        )
        models = [self.pair.target, self.pair.draft] if speculative else [self.pair.target]
        streams = Streams.of(request, SEEDS, [each.seed for each in taken], self.pair.target.device)
        new = Batch(models, request, streams, range(len(taken)), ServedRows, prefill_tokens=MAX_PREFILL_TOKENS)
        yield from new.prefill
        self.metrics.add("prompt_tokens", sum(len(each.prompt_ids) for each in taken))
        if group in self.groups:
            batch, requests = self.groups[group]
            batch.join(new)
            requests += taken
        else:
            self.groups[group] = new, taken
        self.prefilling = []

    def step(self, batch: Batch, requests: list[ServedRequest]) -> None:
        """Drop the rows of clients that are gone, run a verification step or a plain one, and drop finished rows."""
        gone = [request for request in requests if request.cancelled.is_set()]
        self.abandon(gone, "abort")
        leave(batch, requests, gone)
        if not requests:
            return
        finished = []
        steps = SpeculativeSteps(batch).step() if batch.drafter is not None else batch.plain_step()
        for row, (request, text, emitted) in enumerate(zip(requests, batch.texts, list(steps), strict=True)):
            proposed = text.steps[-1].proposed if request.speculative else 0
            self.metrics.count(emitted, proposed, speculative=request.speculative)
            logp = logp_of(batch.verifier, row, emitted) if request.wants_logp else [None] * len(emitted.token_ids)
            reason = "stop" if text.stopped else "length" if text.is_finished(batch.request.limits) else None
            reason = request.receive(emitted, logp, proposed, reason)
            self.after_step(request, row, text, emitted, is_last=reason is not None)
            if reason is not None:
                self.metrics.add("request_success", finished_reason=reason)
                finished.append(request)
        leave(batch, requests, finished)

    def after_step(self, request: ServedRequest, row: int, text: Text, emitted: Emitted, *, is_last: bool) -> None:
        """Do something with the tokens of a row, right after the target's forward pass; see distill.online."""

    def swap(self, draft: PreTrainedModel, folder: Path, done: Future[None]) -> None:
        """Let a loaded draft read all running sequences, then propose with it."""
        try:
            speculation = self.speculation_of(folder)
            batches = [batch for batch, _ in self.groups.values() if batch.drafter is not None]
            with torch.inference_mode():
                drafters = [batch.open_drafter(draft, ServedRows, MAX_PREFILL_TOKENS) for batch in batches]
                for batch, drafter in zip(batches, drafters, strict=True):
                    batch.replace_draft(drafter, speculation)
            self.speculation, self.pair = (
                speculation,
                replace(self.pair, draft=draft, folders=(self.pair.folders[0], folder)),
            )
            done.set_result(None)
        except Exception as error:
            done.set_exception(error)


def leave(batch: Batch, requests: list[ServedRequest], gone: Sequence[ServedRequest]) -> None:
    """Drop the rows of some requests."""
    if gone:
        batch.keep([row for row, request in enumerate(requests) if request not in gone])
        requests[:] = [request for request in requests if request not in gone]


def logp_of(verifier: Any, row: int, emitted: Emitted) -> list[float]:
    """Return the target's log-probabilities of the tokens of a step, at temperature 1 and without filters."""
    logp_NV = verifier.logits_BTV[row, : len(emitted.token_ids)].float().log_softmax(dim=-1)
    ids_N1 = torch.tensor(emitted.token_ids, device=logp_NV.device)[:, None]
    return logp_NV.gather(1, ids_N1)[:, 0].tolist()
