"""Serve requests by speculative decoding in a process next to training: `python -m distill.online.serving`.

The training process writes new drafts to its standard input, a line each: "draft UPDATES FILE". It prints "served" for
each request that is complete in the journal, and "ended" after the last one of the stream. It exits with training.

Shape suffixes used in this file:
    A = tokens of the response, H = width of the target's last hidden state
"""

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from transformers import PreTrainedModel

from architectures.errors import UserError
from architectures.files import write_bytes
from distill.chunked_loss import head_of
from distill.online.served import DraftReplay, Journal, RequestRecord, Served
from distill.process import report_user_errors
from distill.recipe.recipe import Recipe, load_recipe
from distill.run import Run
from eval.decoding.sampling import Sampling
from eval.decoding.speculative import Emitted, Wanted, decode_steps
from eval.decoding.texts import Limits, Seeds, Speculation, row_seed
from eval.models import load_model, load_tokenizer, shared_vocab_size, stop_token_ids
from eval.prompts import render_prompt
from eval.stream import open_stream

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


@dataclass
class OnlineServer:
    """Serves one request after another with a draft whose weights may change in between.

    Attributes:
        lookahead: Tokens drafted per verification step.
        seed: Combined with a request's index in the stream.
    """

    target: PreTrainedModel
    draft: PreTrainedModel
    lookahead: int
    sampling: Sampling
    stop_ids: frozenset[int]
    seed: int
    noted_TH: Tensor = field(init=False)
    replay: DraftReplay = field(init=False)

    def __post_init__(self) -> None:
        head = self.target.get_output_embeddings()
        assert head is not None
        head.register_forward_pre_hook(self.note)
        vocab_size = shared_vocab_size(self.target, self.draft)
        self.replay = DraftReplay(
            self.draft, head_of(self.target), vocab_size, self.sampling, self.lookahead, self.seed
        )

    def note(self, _head: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Store the input of the target's output head during verification of one sequence."""
        self.noted_TH = inputs[0][0].clone()

    def serve(self, request: OnlineRequest, *, updates: int) -> Served:
        """Generate the response to a request, and record the draft's acceptance."""
        begin_s = time.monotonic()
        limits = Limits(request.max_new_tokens, self.stop_ids)
        wanted = Wanted([request.prompt_ids], limits, self.sampling, Speculation(self.lookahead))
        seeds, row_seeds = Seeds.of(self.seed), [row_seed(request.number)]
        token_ids: list[int] = []
        mistakes: list[int] = []
        states: list[Tensor] = []
        rounds = []
        for step in decode_steps([self.target, self.draft], wanted, seeds=seeds, row_seeds=row_seeds):
            if isinstance(step, Emitted):
                token_ids += step.token_ids
                if step.rejected is not None:
                    mistakes.append(len(token_ids) - 1)
                states.append(self.noted_TH[: len(step.token_ids)].cpu())
            else:
                rounds = step[1].rounds
        end_s = time.monotonic()
        hidden_AH = torch.cat(states)
        record = RequestRecord(
            request=request.number,
            source=request.source,
            updates=updates,
            alpha=self.replay.alpha(request.prompt_ids, token_ids, hidden_AH),
            tokens=len(token_ids),
            rounds=len(rounds),
            proposed=sum(each.proposed for each in rounds),
            accepted=sum(each.accepted for each in rounds),
            seconds=end_s - begin_s,
            answer_ids=tuple(token_ids),
        )
        return Served(record, request.prompt_ids, tuple(mistakes), hidden_AH)


def open_server(run: Run, draft: Path, *, rank: int) -> OnlineServer:
    recipe, online = run.recipe, run.recipe.distill.online
    assert online is not None
    device = f"cuda:{rank % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu"
    load = partial(load_model, dtype=recipe.target.dtype, device=device)
    target, proposer = load(run.target, bits=recipe.target.bits), load(draft)
    sampling = Sampling(recipe.data.temperature, top_p=recipe.data.top_p)
    return OnlineServer(target, proposer, online.lookahead, sampling, stop_token_ids(target), recipe.seed)


def requests_of(run: Run, *, first: int, world: int) -> Iterator[OnlineRequest]:
    """Yield this process's requests from `first` on.

    Raises:
        UserError: As `open_stream`; also if a prompt leaves no token for a response within data.max_seq_len.
    """
    recipe, tokenizer = run.recipe, load_tokenizer(run.target)
    online = recipe.distill.online
    assert online is not None
    for request in open_stream(online.stream, seed=recipe.seed, start=first):
        if (request.number - first) % world:
            continue
        prompt_ids = render_prompt(tokenizer, request.prompt.messages)
        max_new_tokens = min(recipe.data.max_seq_len - len(prompt_ids), recipe.data.max_new_tokens)
        if max_new_tokens < 1:
            raise UserError(
                f"{request.prompt.source}: has {len(prompt_ids)} tokens, and data.max_seq_len is "
                f"{recipe.data.max_seq_len}. Raise it, or leave out this row."
            )
        yield OnlineRequest(request.number, request.source, tuple(prompt_ids), max_new_tokens)


class DraftInbox:
    """The newest draft that training has published, loaded between two requests.

    Args:
        waits: True if a request waits for the update before it.
        own: Requests of this process between two updates.
    """

    def __init__(self, server: OnlineServer, draft: PublishedDraft, *, waits: bool, own: int) -> None:
        self.server, self.waits, self.own = server, waits, own
        self.news: queue.Queue[PublishedDraft | None] = queue.Queue()
        self.serving = threading.Lock()  # held while a request is served
        self.load(draft)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self) -> None:
        """Queue new drafts; exit at the end of standard input, as this process may wait for a request forever."""
        for line in sys.stdin:
            _, updates, path = line.rstrip("\n").split(" ", 2)
            self.news.put((int(updates), Path(path)))
        self.news.put(None)
        with self.serving:  # the current request is written first
            os._exit(0)

    def newest_for(self, served: int) -> int:
        """Load the newest draft, after waiting for the updates due before the next request; return its updates.

        Raises:
            SystemExit: If training has ended.
        """
        needed = served // self.own if self.waits else 0
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
        restore_weights(self.server.draft, load_file(path))


@dataclass
class LiveRequests:
    """Client of the serving process, in the training process.

    Attributes:
        process: None until there is a draft to serve with.
        ended: True after the end of the stream.
    """

    recipe: Path
    journal: Journal
    process: subprocess.Popen[str] | None = None
    served: int = field(init=False)
    ended: bool = False

    def __post_init__(self) -> None:
        self.served = self.journal.begin()

    def take(self, update: int) -> list[Served]:
        """Return this process's served requests for an update; fewer than an interval at the end of the stream.

        Raises:
            UserError: If the serving process failed; it has printed the error.
        """
        own = self.journal.own
        while self.served < (update + 1) * own and not self.ended:
            assert self.process is not None, "a draft is published before requests are taken"
            assert self.process.stdout is not None
            word = self.process.stdout.readline().strip()
            self.served += word == "served"
            self.ended = word == "ended"
            if not word:
                raise UserError(
                    f"{self.recipe}: the process that serves requests ended ({self.process.wait()}); its output is "
                    "above. Run the same command again: served requests are kept."
                )
        return self.journal.read(self.journal.of_update(update)[: max(0, self.served - update * own)])

    def publish(self, model: nn.Module, *, updates: int) -> None:
        path = self.journal.folder / f"draft-{updates:08d}.safetensors"
        write_bytes(save({name: weight.cpu().contiguous() for name, weight in trained_weights(model).items()}), path)
        if self.process is None:
            words = (self.recipe, self.journal.folder, path, updates, self.journal.rank, self.journal.world)
            self.process = subprocess.Popen(
                [sys.executable, "-m", "distill.online.serving", *map(str, words)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
        elif not self.ended:
            assert self.process.stdin is not None
            try:
                self.process.stdin.write(f"draft {updates} {path}\n")
                self.process.stdin.flush()
            except BrokenPipeError:  # it has exited, which `take` reports
                return
        for old in sorted(self.journal.folder.glob("draft-*.safetensors"))[:-DRAFTS_TO_KEEP]:
            old.unlink()

    def close(self) -> None:
        """Close its standard input, which makes it exit, and wait."""
        if self.process is not None:
            self.process.communicate()


def serve(recipe: Recipe, folder: Path, draft: PublishedDraft, *, rank: int, world: int) -> None:
    run, online = Run.of(recipe), recipe.distill.online
    assert online is not None
    journal = Journal(folder, rank, world, online.update_interval)
    inbox = DraftInbox(open_server(run, run.init.path, rank=rank), draft, waits=online.waits, own=journal.own)
    served = journal.num_served()
    for request in requests_of(run, first=journal.request(served), world=world):
        with inbox.serving:
            updates = inbox.newest_for(served)
            journal.write(inbox.server.serve(request, updates=updates))
        served += 1
        print("served", flush=True)
    print("ended", flush=True)


def main(words: list[str]) -> int:
    recipe, folder, draft, updates, rank, world = words
    newest = (int(updates), Path(draft))
    return report_user_errors(
        lambda: serve(load_recipe(recipe), Path(folder), newest, rank=int(rank), world=int(world))
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
