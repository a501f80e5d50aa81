"""A stream of requests served by one draft that does not learn: what others are compared with."""

import time
from collections.abc import Iterator
from pathlib import Path

from architectures.errors import UserError
from architectures.files.atomic import write_text
from architectures.progress.track import track
from distill.losses.answer_logits import vocab_size_of
from distill.recipe.sections.teacher import teacher_dtype
from distill.requests.answers import recorded_answers
from distill.requests.chances import Asker
from distill.requests.journal import HEADER, line_of
from distill.requests.recorded import replayed
from distill.requests.worker import open_server, requests_of
from distill.run.run import Run
from distill.teacher_cache.contents import load_head
from eval.decoding.sampling import Sampling
from eval.models.loading import default_device, load_model, require_same_tokenizer
from eval.records.request import RequestRecord


def serve_stream(run: Run, draft: Path, out: Path) -> int:
    """Serve all requests of a run's stream by a draft, and write their records; how many there were.

    Raises:
        UserError: If the recipe has no requests, the draft has another tokenizer, or as the stream and answers do.
    """
    online = run.recipe.distill.online
    if online is None:
        raise UserError(
            f"{run.recipe_file}: has no distill.online, whose stream says which requests come. Add it, with "
            "distill.mode online."
        )
    require_same_tokenizer(run.target, draft)
    records = replay_all(run, draft) if online.answers == "recorded" else answer_all(run, draft)
    lines = [line_of(record) for record in records]
    write_text(HEADER + "".join(lines), out)
    return len(lines)


def replay_all(run: Run, draft: Path) -> Iterator[RequestRecord]:
    """The records of recorded answers."""
    recipe, online, answers = run.recipe, run.recipe.distill.online, recorded_answers(run)
    assert online is not None
    device = default_device()
    dtype = teacher_dtype(recipe.target.dtype, recipe.distill.precision)
    head, model = load_head(run.target, dtype=dtype, device=device), load_model(draft, dtype="float32", device=device)
    sampling = Sampling(recipe.data.temperature, top_p=recipe.data.top_p)
    asker = Asker(model, head, min(head.vocab_size, vocab_size_of(model)), sampling)
    for recorded in track(answers, description="requests", total=len(answers)):
        chances = asker.chances(recorded.prompt_ids, recorded.answer_ids, recorded.hidden_AH)
        yield replayed(recorded, chances, lookahead=online.lookahead, seed=recipe.seed, updates=0)[1]


def answer_all(run: Run, draft: Path) -> Iterator[RequestRecord]:
    """The records of requests that are answered now."""
    online = run.recipe.distill.online
    assert online is not None
    server = open_server(run, draft, rank=0)
    for asked in requests_of(run, first=0, world=1):
        yield server.serve(asked, updates=0, since_s=time.monotonic())[1]
