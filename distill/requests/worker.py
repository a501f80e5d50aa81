"""The process that answers requests beside a training: `python -m distill.requests.worker`, started by it.

It is told of new drafts on its standard input, a line each: "draft UPDATES FILE". It says "served" on its standard
output for each request that is whole in the journal, and "ended" after the last one of the stream.
"""

import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from architectures.errors import UserError
from distill.process.exits import report_user_errors
from distill.recipe.recipe import Recipe, load_recipe
from distill.requests.journal import Journal, Share
from distill.requests.serving import Asked, Server
from distill.requests.weights import read_weights
from distill.run.run import Run
from eval.decoding.sampling import Sampling
from eval.decoding.texts import Seeds, Speculation
from eval.models.loading import load_model, load_tokenizer, stop_token_ids
from eval.prompts import render_prompt
from eval.streams.stream import open_stream

News = tuple[int, Path]  # updates of a draft, and its file


def main(words: list[str]) -> int:
    """Answer until the stream ends, or nobody speaks any more; the exit code."""
    recipe, folder, draft, updates, rank, world = words
    return report_user_errors(
        lambda: work(load_recipe(recipe), Path(folder), (int(updates), Path(draft)), rank=int(rank), world=int(world))
    )


def work(recipe: Recipe, folder: Path, draft: News, *, rank: int, world: int) -> None:
    """Answer this process's share of the requests that are not answered yet."""
    run, online = Run.of(recipe), recipe.distill.online
    assert online is not None
    journal = Journal(folder, Share(rank, world, online.update_interval))
    drafts = Drafts(open_server(run, run.init.path, rank=rank), draft, waits=online.waits, own=journal.share.own)
    served = journal.num_served()
    for asked in requests_of(run, first=journal.share.request(served), world=world):
        since_s = time.monotonic()
        with drafts.serving:
            updates = drafts.newest_for(served)
            journal.write(*drafts.server.serve(asked, updates=updates, since_s=since_s))
        served += 1
        print("served", flush=True)
    print("ended", flush=True)


def open_server(run: Run, draft: Path, *, rank: int) -> Server:
    """Target and draft on this process's device."""
    recipe, online = run.recipe, run.recipe.distill.online
    assert online is not None
    device = f"cuda:{rank % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu"
    load = partial(load_model, dtype=recipe.target.dtype, device=device)
    target, proposer = load(run.target, bits=recipe.target.bits), load(draft)
    return Server(
        target,
        proposer,
        Speculation(online.lookahead),
        Sampling(recipe.data.temperature, top_p=recipe.data.top_p),
        stop_token_ids(target),
        Seeds.of(recipe.seed),
    )


def requests_of(run: Run, *, first: int, world: int) -> Iterator[Asked]:
    """This process's requests from one on; those that leave no room for an answer are told and left out.

    Raises:
        UserError: As `open_stream`; also where a request is longer than data.max_seq_len.
    """
    recipe, tokenizer = run.recipe, load_tokenizer(run.target)
    online = recipe.distill.online
    assert online is not None
    for request in open_stream(online.stream, seed=recipe.seed, start=first):
        if (request.number - first) % world:
            continue
        prompt_ids = render_prompt(tokenizer, request.prompt.messages)
        room = recipe.data.max_seq_len - len(prompt_ids)
        if room < 1:
            raise UserError(
                f"{request.prompt.source}: has {len(prompt_ids)} tokens, and data.max_seq_len is "
                f"{recipe.data.max_seq_len}. Raise it, or leave out this row."
            )
        yield Asked(request.number, request.source, tuple(prompt_ids), min(room, recipe.data.max_new_tokens))


@dataclass
class Drafts:
    """The draft of the moment: what was handed over last, taken up between two requests.

    Attributes:
        server: Whose draft it is.
        updates: That it has had.
        waits: Whether a request waits for the update before it.
        own: Requests of this process between two updates.
        serving: Held while a request is answered.
    """

    server: Server
    updates: int
    waits: bool
    own: int
    serving: threading.Lock

    def __init__(self, server: Server, draft: News, *, waits: bool, own: int) -> None:
        self.server, self.waits, self.own = server, waits, own
        self.news: queue.Queue[News | None] = queue.Queue()
        self.serving = threading.Lock()
        self.take(draft)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self) -> None:
        """Note what is told; when nobody speaks any more end this process, which may wait for a request for ever."""
        for line in sys.stdin:
            _, updates, path = line.rstrip("\n").split(" ", 2)
            self.news.put((int(updates), Path(path)))
        self.news.put(None)
        with self.serving:  # the request that is being answered is noted first
            os._exit(0)

    def newest_for(self, served: int) -> int:
        """Take up the newest draft, once it has learned what it should have before the next request; its updates.

        Args:
            served: Requests that are answered.

        Raises:
            SystemExit: If nobody speaks any more.
        """
        needed = served // self.own if self.waits else 0
        newest: News | None = None
        while not self.news.empty() or (newest[0] if newest else self.updates) < needed:
            newest = self.news.get()
            if newest is None:
                raise SystemExit(0)
        if newest is not None:
            self.take(newest)
        return self.updates

    def take(self, draft: News) -> None:
        """Take up a draft that was handed over."""
        self.updates, path = draft
        read_weights(self.server.draft, path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
