"""Memory and time of a distillation loss with its gradients: whole logits, chunks, Liger's and TRL's code.

    python benchmarks/loss.py --out benchmarks/results/loss.json

Each measurement has a process of its own, so that its peak memory is its own. It holds hidden states and both heads in
the dtypes of `precision: amp_bf16` (student float32 under autocast, teacher bfloat16), and computes the loss and the
gradients of hidden states and head --repeats times, for the peak of memory and the least time. On a CPU that is CPU
time, which other programs on the machine hardly lengthen. Liger and TRL are measured if they are installed. At 8,192
tokens and a vocabulary of 128,256 whole logits take 24 GiB; on a smaller machine give fewer --tokens.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from architectures.manifest import provenance
from distill.chunked_loss import Head, chunked_sum, plain_sum, rows_at_a_time
from distill.losses import build_objective, chunk_size

PEERS = {"liger": "liger_kernel", "trl": "trl"}
OWN = ["plain", "chunked"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is measured.

    Attributes:
        path: One of PATHS.
        loss: By its name in a recipe.
        tokens: Rows of hidden states.
        vocab: Rows of both heads.
        hidden: Width of the student's.
        teacher_hidden: Of the teacher's.
    """

    path: str
    loss: str
    tokens: int
    vocab: int
    hidden: int = 576
    teacher_hidden: int = 1024


def main() -> None:
    """Measure one path (--path), or all of them into --out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[32_000, 128_256])
    parser.add_argument(
        "--few-tokens", type=int, nargs="+", default=[64, 512, 1024], help="to see which path is faster"
    )
    parser.add_argument("--job", type=json.loads, help="measure this alone, and print a line of JSON")
    options = parser.parse_args()
    if options.job:
        torch.set_num_threads(options.threads)
        print(json.dumps(measure(Job(**options.job), device=options.device, repeats=options.repeats)))
        return
    record = {"rows": list(rows(options)), "threads": options.threads, "provenance": provenance()}
    print(table(record["rows"]))
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare whole logits with chunks at many and few tokens, then every installed implementation of one loss."""
    first = options.vocabularies[0]
    peers = [name for name, package in PEERS.items() if find_spec(package) is not None]
    return [
        *(compare(options, vocab, options.tokens, "forward_kl", OWN) for vocab in options.vocabularies),
        *(compare(options, first, few, "forward_kl", OWN) for few in options.few_tokens),
        compare(options, first, options.tokens // 4, "jensen_shannon", [*OWN, *peers]),
    ]


def compare(options: argparse.Namespace, vocab: int, tokens: int, loss: str, paths: list[str]) -> dict[str, Any]:
    """One process after the other for each path."""
    measured = {}
    for path in paths:
        job = Job(path=path, loss=loss, tokens=tokens, vocab=vocab)
        measured[path] = measure_in_a_process(
            job, device=options.device, repeats=options.repeats, threads=options.threads
        )
    row = {"loss": loss, "vocab": vocab, "tokens": tokens, "chunk_tokens": chunk_size(vocab), "paths": measured}
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def measure_in_a_process(job: Job, *, device: str, repeats: int, threads: int) -> dict[str, Any]:
    """What measure gives in a process of its own, whose peak of memory is the job's alone.

    Raises:
        RuntimeError: With the end of what the process said, if it failed.
    """
    command = [sys.executable, "-W", "ignore", __file__, "--device", device, "--threads", str(threads)]
    command += ["--repeats", str(repeats), "--job", json.dumps(asdict(job))]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise RuntimeError(f"{job.path} at {job.tokens} x {job.vocab} failed:\n{completed.stderr[-2000:]}")
    return json.loads(completed.stdout.splitlines()[-1])


def measure(job: Job, *, device: str, repeats: int) -> dict[str, Any]:
    """Peak memory above what was there before, and the least time of one loss with its gradients."""
    hidden, weight, teacher_hidden, teacher_weight = tensors = inputs_of(job, device)
    prepare = PATHS[job.path]
    run = prepare(*tensors, job.loss)
    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
        run_small = prepare(hidden[:4], weight, teacher_hidden[:4], teacher_weight, job.loss)
        run_small().backward()  # what a first call allocates for good is not the loss's
        hidden.grad = weight.grad = None
        before = reset_peak(device)
        times = []
        for _ in range(repeats):
            start_s = now_s(device)
            value = step(run, hidden, weight)
            times.append(now_s(device) - start_s)
        extra = peak(device) - before
    return {"extra_mib": round(extra / 2**20), "seconds": round(min(times), 5), "loss_nats": value}


def inputs_of(job: Job, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random hidden states and head of a student, which want gradients, and of its teacher; made on the device."""
    generator = torch.Generator(device).manual_seed(0)

    def random(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, device=device) * size[-1] ** -0.5

    hidden = (random(job.tokens, job.hidden) * job.hidden**0.5).requires_grad_()
    weight = random(job.vocab, job.hidden).requires_grad_()
    teacher_hidden = (random(job.tokens, job.teacher_hidden) * job.teacher_hidden**0.5).bfloat16()
    teacher_weight = random(job.vocab, job.teacher_hidden).bfloat16()
    return hidden, weight, teacher_hidden, teacher_weight


def step(run: Callable[[], Tensor], hidden: Tensor, weight: Tensor) -> float:
    """Mean loss, and gradients."""
    loss = run()
    loss.backward()
    hidden.grad = weight.grad = None
    return round(loss.item(), 5)


def ours(total: Callable[..., Tensor]) -> Callable[..., Callable[[], Tensor]]:
    def prepare(hidden: Tensor, weight: Tensor, teacher_hidden: Tensor, teacher_weight: Tensor, loss: str) -> Any:
        head, teacher = (Head(each, None, None, len(each)) for each in (weight, teacher_weight))
        objective = build_objective(loss, temperature=1.0)
        token_ids = torch.zeros(len(hidden), dtype=torch.long)

        def loss_of_rows(student_CV: Tensor, at: slice) -> Tensor:
            with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
                teacher_CV = teacher.logits(teacher_hidden[at])
            return objective(student_CV, teacher_CV, token_ids[at])

        return lambda: total(hidden, head, loss_of_rows) / len(hidden)

    return prepare


def in_chunks(hidden: Tensor, head: Head, loss_of_rows: Callable[[Tensor, slice], Tensor]) -> Tensor:
    """Chunks even where the plain path would be taken."""
    size = min(rows_at_a_time(hidden, head.vocab_size), len(hidden))
    return chunked_sum(hidden, head, loss_of_rows, chunk_tokens=size)


def liger(hidden: Tensor, weight: Tensor, teacher_hidden: Tensor, teacher_weight: Tensor, loss: str) -> Any:
    """Liger's fused linear Jensen-Shannon loss, not compiled."""
    from liger_kernel.chunked_loss import LigerFusedLinearJSDLoss  # pyright: ignore[reportMissingImports]

    assert loss == "jensen_shannon"
    fused = LigerFusedLinearJSDLoss(weight_hard_loss=0.0, weight_soft_loss=1.0, beta=0.5, compiled=False)
    labels = torch.zeros(len(hidden), dtype=torch.long, device=hidden.device)
    return lambda: fused(hidden, weight, teacher_hidden, teacher_weight, labels)


def trl(hidden: Tensor, weight: Tensor, teacher_hidden: Tensor, teacher_weight: Tensor, loss: str) -> Any:
    """The loss of TRL's GKDTrainer, from logits of all tokens as its trainer makes them."""
    from trl.experimental.gkd import GKDTrainer  # pyright: ignore[reportMissingImports]

    assert loss == "jensen_shannon"

    def run() -> Tensor:
        student_AV = torch.nn.functional.linear(hidden, weight)
        with torch.no_grad():
            teacher_AV = torch.nn.functional.linear(teacher_hidden, teacher_weight)
        labels = torch.zeros(1, len(hidden), dtype=torch.long, device=hidden.device)
        return GKDTrainer.generalized_jsd_loss(student_AV[None], teacher_AV[None], labels=labels, beta=0.5)

    return run


PATHS: dict[str, Callable[..., Any]] = {
    "plain": ours(plain_sum),
    "chunked": ours(in_chunks),
    "liger": liger,
    "trl": trl,
}


def reset_peak(device: str) -> int:
    """Bytes in use, from where on the peak is watched."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    return resident("VmRSS")


def peak(device: str) -> int:
    """Most bytes in use since reset_peak."""
    return torch.cuda.max_memory_allocated() if device.startswith("cuda") else resident("VmHWM")


def resident(name: str) -> int:
    """A size that Linux tells of this process, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


def now_s(device: str) -> float:
    """The clock once a GPU has finished, or the time this process has worked."""
    if not device.startswith("cuda"):
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def table(comparisons: list[dict[str, Any]]) -> str:
    """Markdown: each path against the plain one."""
    lines = ["| loss | vocabulary | tokens | path | extra MiB | of plain | seconds | of plain |", "|" + "---|" * 8]
    for row in comparisons:
        plain = row["paths"]["plain"]
        for path, cell in row["paths"].items():
            lines.append(
                f"| {row['loss']} | {row['vocab']:,} | {row['tokens']:,} | {path} | {cell['extra_mib']:,} "
                f"| {cell['extra_mib'] / max(1, plain['extra_mib']):.3f} "
                f"| {cell['seconds']:.3f} | {cell['seconds'] / plain['seconds']:.2f} x |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
