"""Serve HTTP requests by continuous batching in a process next to training: `python -m distill.online.http_serving`.

Its standard input and output are those of distill.online.serving. The journal gets each finished request that was
decoded with the draft, numbered in the order in which they finish.
"""

import os
import sys
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import torch
from prometheus_client import Gauge

from architectures.errors import UserError
from distill.chunked_loss import head_of
from distill.online import serving
from distill.process import take_interrupts
from distill.recipe.recipe import Recipe
from distill.run import Run
from eval.config import ServeSettings
from eval.decoding.sampling import Text
from eval.decoding.speculative import Emitted
from eval.http_server import HttpServer, addresses, listen
from eval.models import load_tokenizer
from eval.pair import LoadedPair
from eval.serving_engine import ServedRequest, ServingEngine

SOURCE = "http"  # of every request
WINDOW = 100  # first and last requests, whose acceptance rates are compared
MAX_BACKLOG = 256  # requests that wait for training; at least an update_interval


class LearningEngine(ServingEngine):
    """Decodes with the newest draft of training, and writes finished requests into the journal.

    Attributes:
        inbox: Set before the first request.
    """

    inbox: serving.DraftInbox

    def __init__(self, pair: LoadedPair, settings: ServeSettings, journal: serving.Journal, *, seed: int) -> None:
        super().__init__(pair, settings)
        self.journal, self.num_recorded, self.num_skipped = journal, journal.num_served(), 0
        self.head_input = serving.head_input(pair.target)
        k = self.speculation.num_speculative_tokens
        self.replay = serving.DraftReplay(pair.draft, head_of(pair.target), self.vocab_size, k, seed)
        records = list(serving.read_records(journal.records_file))[: self.num_recorded]
        self.first, self.last = records[:WINDOW], deque(records, maxlen=WINDOW)
        self.add_gauges()

    def add_gauges(self) -> None:
        gauge = partial(Gauge, registry=self.metrics.registry)
        gauge("widedraft:online_updates", "Updates of the draft.").set_function(lambda: self.inbox.updates)
        text = "Requests for training, and those skipped because it is too far behind."
        requests = gauge("widedraft:online_requests", text, ["state"])
        requests.labels("recorded").set_function(lambda: self.num_recorded)
        requests.labels("skipped").set_function(lambda: self.num_skipped)
        text = f"Expected acceptance rate per token in the first and last {WINDOW} requests for training."
        rate = gauge("widedraft:online_acceptance_rate", text, ["window"])
        rate.labels("first").set_function(lambda: acceptance_rate(self.first))
        rate.labels("last").set_function(lambda: acceptance_rate(list(self.last)))

    def swap_draft(self, draft: str) -> None:
        raise UserError(f"{draft}: this server's draft is in training. Start another server for it.")

    def take(self) -> None:
        """Also load the newest draft, in place."""
        before = self.inbox.updates
        if self.inbox.newest_for(self.num_recorded) != before:
            self.swap(self.pair.draft, self.pair.folders[1], Future())
        super().take()

    def after_step(self, request: ServedRequest, row: int, text: Text, emitted: Emitted, *, is_last: bool) -> None:
        """Keep the target's hidden states of the row; record the request after its last step."""
        if not request.speculative:
            return
        request.states.append(self.head_input[0][row, : len(emitted.token_ids)].to("cpu", copy=True))
        if is_last:
            try:
                self.record(request, text)
            except OSError as error:
                print(f"{self.journal.folder}: {error}", file=sys.stderr)
                self.inbox.end()

    def record(self, request: ServedRequest, text: Text) -> None:
        """Write a finished request into the journal. Its text may go on for a few tokens after a stop string."""
        if self.num_recorded - self.inbox.updates * self.journal.own >= MAX_BACKLOG:
            self.num_skipped += 1
            return
        number, ids, hidden_AH = self.journal.request(self.num_recorded), tuple(text.emitted), torch.cat(request.states)
        recorded = serving.Recorded(number, SOURCE, request.prompt_ids, ids, request.sampling, hidden_AH)
        steps = [(step.proposed, step.accepted) for step in text.steps]
        seconds = time.monotonic() - request.begin_s
        alpha = self.replay.alpha(recorded)
        served = serving.Served.of(recorded, alpha, steps, updates=self.inbox.updates, seconds=seconds)
        self.journal.write(served)
        self.num_recorded += 1
        self.first += [served.record] if len(self.first) < WINDOW else []
        self.last.append(served.record)
        print("served", flush=True)


def acceptance_rate(records: Iterable[serving.RequestRecord]) -> float:
    """Return the mean over all tokens; NaN without any."""
    tokens = sum(record.tokens for record in records)
    return sum(record.alpha * record.tokens for record in records) / tokens if tokens else float("nan")


def serve_over_http(recipe: Recipe, folder: Path, draft: serving.PublishedDraft, *, rank: int, world: int) -> None:
    """Serve until training ends, or this process is interrupted; raises UserError."""
    run = Run.of(recipe)
    settings = ServeSettings.model_validate_json(os.environ[serving.SERVER_VARIABLE])
    journal = serving.Journal(folder, rank, world, serving.online_of(run).update_interval)
    with listen(settings) as listener:
        models, folders = serving.load_models(run, rank=rank), (run.target, run.init.path)
        pair = LoadedPair(*models, load_tokenizer(run.target), folders, recipe.target.bits)
        engine = LearningEngine(pair, settings, journal, seed=recipe.seed)
        server = HttpServer(engine, settings)
        engine.inbox = serving.DraftInbox(pair.draft, draft, end=server.stop)
        with engine:
            print(addresses(settings, listener), file=sys.stderr, flush=True)
            server.run(sockets=[listener])


if __name__ == "__main__":
    take_interrupts()
    sys.exit(serving.main(sys.argv[1:], serve_over_http))
