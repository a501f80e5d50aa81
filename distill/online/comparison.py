"""Drafts that do not learn over the stream of an online run, compared with the draft that learned: one table.

Each draft of `distill.online.baselines` serves the same requests; its records are kept in <run>/online, so that a
second call computes only what is new.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from architectures.errors import UserError
from architectures.files.atomic import write_text
from architectures.progress.track import track
from architectures.tables import Table, markdown
from distill.losses.answer_logits import vocab_size_of
from distill.online.learning import FOLDER, RECORDS, online_of
from distill.online.replayed import Asker, recorded_stream, replay_request
from distill.online.served import RequestRecord, read_records, write_records
from distill.online.serving import open_server, requests_of
from distill.recipe.sections.teacher import teacher_dtype
from distill.run.run import Run
from distill.teacher_cache import load_head
from eval.acceptance.estimates import Columns, Estimate, Resampling, paired_ratio_difference, pooled_ratio
from eval.decoding.sampling import Sampling
from eval.models.loading import default_device, load_model, require_same_tokenizer

TABLE = "comparison.md"
Records = Sequence[RequestRecord]


def compare_on_stream(run: Run) -> Path:
    """Write <run>/online/comparison.md; returns its path.

    Raises:
        UserError: If a baseline has another tokenizer, or the online draft has served nothing yet.
    """
    folder, online = run.folder / FOLDER, online_of(run)
    learned = list(read_records(folder / RECORDS))
    if not learned:
        raise UserError(f"{folder / RECORDS}: has no requests. Train the online draft first (widedraft distill).")
    arms = {}
    for name in online.baselines:
        draft = run.init.path if name == "init" else Path(name)
        records_file = folder / f"baseline-{len(arms)}.jsonl"
        if not is_newer(records_file, draft):
            require_same_tokenizer(run.target, draft)
            write_records(list(serve_stream(run, draft)), records_file)
        arms[name] = list(read_records(records_file))
    arms["online"] = learned
    settings = run.recipe.eval
    resampling = Resampling(settings.confidence, settings.num_resamples, run.recipe.seed)
    text = (
        f"Acceptance over the last {online.last_share:.0%} of each source's requests, with "
        f"{resampling.confidence:.0%} intervals by bootstrap over requests. Gains are over {next(iter(arms))} on the "
        "same requests, resampled together. Every request's figures are in records.jsonl and baseline-*.jsonl."
    )
    write_text(markdown(text, comparison(arms, online.last_share, resampling)) + "\n", folder / TABLE)
    return folder / TABLE


def is_newer(records_file: Path, draft: Path) -> bool:
    """Whether a file of records was written behind every file of the draft."""
    files = [path.stat().st_mtime_ns for path in draft.glob("*.safetensors")]
    return records_file.is_file() and bool(files) and records_file.stat().st_mtime_ns > max(files)


def serve_stream(run: Run, draft: Path) -> Iterator[RequestRecord]:
    """The records of all requests of a run's stream, served by a draft that does not learn."""
    recipe, online = run.recipe, online_of(run)
    if online.answers == "live":
        server = open_server(run, draft, rank=0)
        for asked in requests_of(run, first=0, world=1):
            yield server.serve(asked, updates=0, since_s=time.monotonic())[1]
        return
    recorded, device = recorded_stream(run), default_device()
    dtype = teacher_dtype(recipe.target.dtype, recipe.distill.precision)
    head, model = load_head(run.target, dtype=dtype, device=device), load_model(draft, dtype="float32", device=device)
    sampling = Sampling(recipe.data.temperature, top_p=recipe.data.top_p)
    asker = Asker(model, head, min(head.vocab_size, vocab_size_of(model)), sampling)
    for each in track(recorded, description="requests", total=len(recorded)):
        accepts = asker.accepts(each.prompt_ids, each.answer_ids, each.hidden_AH)
        yield replay_request(each, accepts, lookahead=online.lookahead, seed=recipe.seed, updates=0)[1]


def alpha_columns(records: Records) -> Columns:
    """Alpha of each request times its tokens, and these."""
    return [record.alpha * record.tokens for record in records], [float(record.tokens) for record in records]


def tau_columns(records: Records) -> Columns:
    """Tokens and verification steps of each request."""
    return [float(record.tokens) for record in records], [float(record.rounds) for record in records]


def comparison(arms: dict[str, list[RequestRecord]], last_share: float, resampling: Resampling) -> Table:
    """A row for each source and draft: alpha and tau over the last requests, and gains over the first draft.

    Args:
        arms: Records by draft; the requests that all of them served are compared.
        last_share: Of each source's requests.
        resampling: How intervals are made.
    """
    shared = set.intersection(*({record.request for record in records} for records in arms.values()))
    rows = []
    for source in dict.fromkeys(record.source for records in arms.values() for record in records):
        parts = {
            name: last_part([each for each in records if each.source == source and each.request in shared], last_share)
            for name, records in arms.items()
        }
        first = next(iter(parts.values()))
        for name, part in parts.items():
            cells = [source, name, f"{len(part):,}"]
            for columns in (alpha_columns, tau_columns):
                cells += measure(part, first if part is not first else None, columns, resampling)
            rows.append(cells)
    return Table(("source", "draft", "requests", "alpha", "gain in alpha", "tau", "gain in tau"), rows)


def last_part(records: Records, share: float) -> Records:
    """The last share of some requests in the order of the stream, at least one."""
    ordered = sorted(records, key=lambda record: record.request)
    return ordered[-max(1, round(share * len(ordered))) :]


def measure(
    part: Records, first: Records | None, columns: Callable[[Records], Columns], resampling: Resampling
) -> list[str]:
    """A value and its gain over the first draft, as cells."""
    if not part:
        return ["–", "–"]
    gain = None if first is None else paired_ratio_difference(columns(part), columns(first), resampling)
    return [cell(pooled_ratio(*columns(part), resampling)), "–" if gain is None else cell(gain)]


def cell(estimate: Estimate) -> str:
    """A value with its interval."""
    low_high = "" if estimate.interval is None else f" [{estimate.interval[0]:.3f}, {estimate.interval[1]:.3f}]"
    return f"{estimate.value:.3f}{low_high}"
