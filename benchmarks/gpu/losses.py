"""Memory and time of a distillation loss with its gradients: whole logits, chunks of several sizes, and Liger's.

What is measured is benchmarks/loss.py's, here at a 7B target's width. On a GPU one process does all of it, since CUDA's
allocator tells the peak of each; on a processor each measurement has a process of its own.
"""

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch

from architectures.shapes.shape import NAMED_SHAPES
from benchmarks.gpu.attempt import attempt
from benchmarks.gpu.memory import free_memory
from benchmarks.gpu.stage import Row, Setting, Size, lack_of_memory, lack_of_time
from benchmarks.loss import BYTES_OF_PLAIN, PEERS, Job, measure, measure_in_a_process
from distill.recipe.sections.token_selection import GPU_CHUNKS, chunk_size

HIDDEN = NAMED_SHAPES["llama-7b"].shape.hidden
PATHS_OF = {"forward_kl": ("plain", "chunked"), "jensen_shannon": ("plain", "chunked", "liger")}
# Vocabulary, tokens, width of both models, runs, and the sizes of further chunks, in multiples of a processor's, which
# alone are compared with what training takes: an H200 has told of larger ones.
SIZES: dict[Size, dict[str, Any]] = {
    "full": {"vocab": (32_000, 128_256), "tokens": 8192, "hidden": HIDDEN, "repeats": 5, "more_chunks": (1,)},
    "laptop": {"vocab": (32_000,), "tokens": 1024, "hidden": 576, "repeats": 2, "more_chunks": ()},
    "tiny": {"vocab": (512,), "tokens": 64, "hidden": 32, "repeats": 1, "more_chunks": ()},
}
SECONDS = {"full": 3.0, "laptop": 15.0, "tiny": 10.0}  # of one measurement, with its process where it has one
# Rows and gradients of heads and hidden states beside the logits, and one chunk's logits; float32.
COPIES_OF_HEAD = 5


def rows(setting: Setting) -> Iterator[Row]:
    """Whole logits against chunks at each vocabulary, chunks of other sizes, and the loss that Liger has too."""
    for job in jobs(setting.size):
        cell = {**asdict(job), "chunk_tokens": chunk_tokens(job), "dtype": "bfloat16"}
        problem = lack(job, setting)
        yield {**cell, "skipped": problem} if problem else attempt(cell, partial(measured, job, setting))


def jobs(size: Size) -> list[Job]:
    """What is measured, the most valuable first: on a GPU the loss that none has been asked for yet."""
    sizes, on_gpu = SIZES[size], size == "full"
    first = [
        Job(path=path, loss=loss, tokens=sizes["tokens"], vocab=vocab, hidden=width, teacher_hidden=width)
        for width in (sizes["hidden"],)
        for loss, paths in PATHS_OF.items()
        for vocab in sizes["vocab"]
        for path in paths
    ]
    if on_gpu:
        taken = {"chunked": GPU_CHUNKS}
        first = [
            replace(job, chunk_tokens=taken[job.path] * chunk_size(job.vocab)) if job.path in taken else job
            for job in first
        ]
    ours = [job for job in first if job.loss == "forward_kl"]
    others = [job for job in first if job not in ours]
    more = [
        replace(job, chunk_tokens=times * chunk_size(job.vocab))
        for job in ours
        if job.path == "chunked"
        for times in sizes["more_chunks"]
    ]
    return [*others, *ours, *more] if on_gpu else [*ours, *more, *others]


def chunk_tokens(job: Job) -> int | None:
    """Tokens whose logits exist at a time, as far as we know."""
    if job.path == "chunked":
        return min(job.chunk_tokens or chunk_size(job.vocab), job.tokens)
    return job.tokens if job.path == "plain" else None


def lack(job: Job, setting: Setting) -> str | None:
    """Why a job cannot be done; None where it can."""
    package = PEERS.get(job.path)
    if package is not None and find_spec(package) is None:
        return f"{package} is not installed"
    at_once = chunk_tokens(job) or job.tokens
    needed = at_once * job.vocab * BYTES_OF_PLAIN[job.loss] + COPIES_OF_HEAD * 4 * job.hidden * (job.vocab + job.tokens)
    what = f"{job.path} {job.loss} at {job.vocab:,} entries"
    return lack_of_memory(setting, needed, what) or lack_of_time(setting, SECONDS[setting.size], what)


def measured(job: Job, setting: Setting) -> Row:
    """Extra memory, the least time and the loss itself."""
    device, repeats = str(setting.device), SIZES[setting.size]["repeats"]
    if setting.device.type != "cuda":
        return measure_in_a_process(job, device=device, repeats=repeats, threads=torch.get_num_threads())
    row = measure(job, device=device, repeats=repeats)
    free_memory()
    return row
