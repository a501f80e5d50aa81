"""Time from opening a teacher cache of many answers to its first batch, and bytes per answer token.

    python benchmarks/teacher_cache.py [--folder DIR] [--answers 100000] [--answer-tokens 20] [--hidden 576] \
        [--vocab 49152]

Writes a cache of each content and the answers it belongs to into DIR, with the program's own writers and random rows,
drops them from the page cache, reads each in a process of its own, and removes everything again. Measured in seconds:

    open            manifest, sizes of all files, index
    first_batch     8 answers drawn from the whole cache, joined
    answers         reading the answers themselves and comparing their fingerprint, as training must besides
    to_first_batch  the three together
    process         the same from the start of the process to its end, with every import
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch

from architectures.checkpoints.manifest import provenance, write_manifest
from architectures.files.atomic import write_json
from distill.data.batches import AnswerDataset, Example
from distill.recipe.sections.teacher import AnyCache, HiddenCache, SampleCache, TopKCache, bytes_per_token
from distill.teacher_cache.contents import join_rows, narrow_ids
from distill.teacher_cache.index import cut_into_shards, fingerprint_examples, index_file, write_index, write_tensors
from distill.teacher_cache.reader import TeacherCache
from distill.teacher_cache.record import FORMAT
from eval.answers.shards import claim_shards, write_shard
from eval.answers.traces import read_traces

RESULTS = Path(__file__).parent / "results" / "teacher_cache.json"
TEACHERS = {
    "hidden": HiddenCache(source="cache"),
    "top_k": TopKCache(source="cache", contents="top_k"),
    "samples": SampleCache(source="cache", contents="samples"),
}
PROMPT_TOKENS, BATCH, ANSWERS_PER_FILE = 60, 8, 1000
MAX_SEQ_LEN = 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="needs about 4 GB free")
    parser.add_argument("--answers", type=int, default=100_000)
    parser.add_argument("--answer-tokens", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=576)
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--one", type=Path, metavar="CACHE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        read_once(options.one)
        return
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="bench-cache-") as folder:
        result = measure(Path(folder), options)
    RESULTS.parent.mkdir(exist_ok=True)
    write_json({**result, "provenance": provenance()}, RESULTS)
    print(json.dumps(result, indent=2))


def measure(folder: Path, options: argparse.Namespace) -> dict:
    """One cache after the other, each removed before the next."""
    answers = folder / "data"
    write_answers(answers, options)
    fingerprint = fingerprint_examples(read_examples(answers))
    runs = {}
    for contents, teacher in TEACHERS.items():
        cache = folder / "teacher_cache"
        runs[contents] = write_cache(cache, fingerprint, teacher, **sizes_of(options))
        drop_from_cache(cache, answers)
        runs[contents] |= read_in_a_process(cache)
        for file in cache.iterdir():
            file.unlink()
    return {**sizes_of(options), "runs": runs}


def sizes_of(options: argparse.Namespace) -> dict[str, int]:
    """How many answers of how many tokens, and of what widths their rows are."""
    return {name: getattr(options, name) for name in ("answers", "answer_tokens", "hidden", "vocab")}


def write_answers(folder: Path, options: argparse.Namespace) -> None:
    """Answers of random ids, as the target would have left them."""
    generator = random.Random(0)
    paths = claim_shards(folder, "train", {}, num_shards=-(-options.answers // ANSWERS_PER_FILE))
    for number, path in enumerate(paths):
        start = number * ANSWERS_PER_FILE
        count = min(ANSWERS_PER_FILE, options.answers - start)
        write_shard(path, [answer_row(start + i, generator, options) for i in range(count)])


def answer_row(number: int, generator: random.Random, options: argparse.Namespace) -> dict:
    ids = [generator.randrange(options.vocab) for _ in range(PROMPT_TOKENS + options.answer_tokens)]
    texts = {"messages": [{"role": "user", "content": "x" * 4 * PROMPT_TOKENS}], "answer": "x" * 4}
    split = {"prompt_ids": ids[:PROMPT_TOKENS], "answer_ids": ids[PROMPT_TOKENS:]}
    return {"id": number, "source": f"bench:{number}", **texts, **split, "finish_reason": "length"}


def write_cache(
    cache: Path,
    fingerprint: str,
    teacher: AnyCache,
    *,
    answers: int,
    answer_tokens: int,
    hidden: int,
    vocab: int,
    dtype: str = "bfloat16",
) -> dict:
    """A finished cache of random rows; one block of them serves for all shards, since only its size counts."""
    num_kept = [answer_tokens] * answers
    token_bytes = bytes_per_token(teacher, "train", hidden=hidden, rows=vocab, dtype=dtype)
    shards = cut_into_shards("train", num_kept, token_bytes=token_bytes)
    count = max(len(shard.answers) for shard in shards) * answer_tokens
    block = random_rows(count, teacher, hidden=hidden, vocab=vocab, dtype=dtype)
    files = {index_file("train"): write_index(cache, "train", num_kept, shards)}
    for shard in shards:
        rows = len(shard.answers) * answer_tokens
        files[shard.file] = write_tensors({name: tensor[:rows] for name, tensor in block.items()}, cache / shard.file)
    names = [shard.file for shard in shards]
    split = {"contents": teacher.contents, "examples": fingerprint, "shards": names}
    records = {name: asdict(record) for name, record in files.items()}
    write_manifest(cache, stage="cache", inputs={}, format=FORMAT, splits={"train": split}, files=records)
    num_bytes = sum((cache / name).stat().st_size for name in names)
    return {
        "bytes_per_token": round(num_bytes / sum(num_kept), 2),
        "shards": len(shards),
        "gb": round(num_bytes / 1e9, 3),
    }


def random_rows(count: int, teacher: AnyCache, *, hidden: int, vocab: int, dtype: str) -> dict[str, torch.Tensor]:
    """Rows of the right types."""
    if isinstance(teacher, HiddenCache):
        return {"hidden": torch.randn(count, hidden).to(getattr(torch, dtype))}
    width = teacher.k if isinstance(teacher, TopKCache) else teacher.num_samples
    ids = narrow_ids(torch.randint(vocab, (count, width)), vocab)
    if isinstance(teacher, SampleCache):
        return {"ids": ids}
    return {"ids": ids, "log_probs": torch.randn(count, width).half(), "log_tail": torch.randn(count)}


def read_examples(folder: Path) -> list[Example]:
    """The answers as training reads them."""
    return AnswerDataset(read_traces(folder, "train"), max_seq_len=MAX_SEQ_LEN).examples


def read_in_a_process(cache: Path) -> dict:
    """Open a cache where nothing was imported or read before."""
    start_s = time.perf_counter()
    command = [sys.executable, __file__, "--one", str(cache)]
    completed = subprocess.run(command, check=True, capture_output=True, text=True)
    return {**json.loads(completed.stdout), "process_s": round(time.perf_counter() - start_s, 3)}


def read_once(folder: Path) -> None:
    """What the process of its own does."""
    clock = [time.perf_counter()]
    cache = TeacherCache(folder, "train")
    clock.append(time.perf_counter())
    join_rows([cache.rows(answer) for answer in random.Random(1).sample(range(len(cache)), BATCH)])
    clock.append(time.perf_counter())
    cache.require_examples(read_examples(folder.parent / "data"))
    clock.append(time.perf_counter())
    spans = zip(("open_s", "first_batch_s", "answers_s"), clock, clock[1:], strict=False)
    elapsed = {name: round(end - start, 3) for name, start, end in spans}
    print(json.dumps({**elapsed, "to_first_batch_s": round(clock[-1] - clock[0], 3)}))


def drop_from_cache(*folders: Path) -> None:
    """Let the system forget the files, so that reading them costs what it costs the first time."""
    for file in (file for folder in folders for file in folder.iterdir()):
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main()
